//! The command line that operators and scripts rely on.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;
use std::process::Stdio;

use petstore_config::version::{COMMIT, VERSION};
use petstore_domain::api_key::ApiKey;
use serde_json::Value;

use crate::support::metrics::metric;
use crate::support::program::{ServeProcess, petstore, run};
use crate::support::{Client, TestDatabase, TestService};

#[test]
fn help_describes_every_command() {
    let mut helps = Vec::new();
    for command in [
        &["--help"][..],
        &["serve", "--help"],
        &["doctor", "--help"],
        &["migrate", "--help"],
        &["keys", "--help"],
        &["keys", "create", "--help"],
        &["keys", "list", "--help"],
        &["keys", "show", "--help"],
        &["keys", "rotate", "--help"],
        &["keys", "revoke", "--help"],
        &["keys", "apply", "--help"],
        &["keys", "generate", "--help"],
        &["import", "--help"],
        &["export", "--help"],
        &["events", "--help"],
        &["openapi", "--help"],
        &["demo", "--help"],
        &["seed", "--help"],
    ] {
        let output = run(command, &[]);
        assert!(output.status.success());
        let name = command.join("_").replace("_--help", "").replace("--help", "petstore");
        helps.push((name, String::from_utf8(output.stdout).unwrap()));
    }
    // An option that several commands have is in a snapshot once: those of the commands have only its first line.
    let mut commands_by_option: BTreeMap<&str, usize> = BTreeMap::new();
    for paragraph in helps.iter().flat_map(|(_, help)| help.split("\n\n")) {
        *commands_by_option.entry(without_heading(paragraph)).or_default() += 1;
    }
    commands_by_option.retain(|option, commands| *commands > 1 && option.trim_start().starts_with('-'));
    insta::assert_snapshot!(
        "help_shared_options",
        commands_by_option.keys().copied().collect::<Vec<_>>().join("\n\n")
    );
    for (name, help) in &helps {
        let shown = help.split("\n\n").map(|paragraph| {
            let option = without_heading(paragraph);
            let shared = commands_by_option.contains_key(option);
            let description = if shared { option.find('\n').map_or("", |end| &option[end..]) } else { "" };
            paragraph.strip_suffix(description).unwrap()
        });
        insta::assert_snapshot!(format!("help_{name}"), shown.collect::<Vec<_>>().join("\n\n"));
    }
}

/// A paragraph of a help text without the heading of its section.
fn without_heading(paragraph: &str) -> &str {
    match paragraph.split_once(":\n") {
        Some((heading, option)) if !heading.starts_with(' ') && !heading.contains('\n') => option,
        _ => paragraph,
    }
}

#[tokio::test]
async fn the_version_and_the_commit_are_in_version_the_metrics_and_every_database_connection() {
    let full = format!("{VERSION}+{COMMIT}");
    assert_eq!(run(&["--version"], &[]).stdout, format!("petstore {VERSION} ({COMMIT})\n").into_bytes());
    let service = TestService::start().await;
    let labels = format!("petstore_build_info{{version=\"{VERSION}\",commit=\"{COMMIT}\"}}");
    assert_eq!(metric(service.admin_address, &labels).await, Some(1.0));
    let names = "SELECT DISTINCT application_name FROM pg_stat_activity \
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let names = service.database.connect().await.query(names, &[]).await.unwrap();
    let names: Vec<&str> = names.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, [format!("petstore/{full}")]);
}

#[tokio::test]
async fn keys_create_prints_the_key_and_nothing_else() {
    let database = TestDatabase::new().await;
    let output = run(&["keys", "create", "--name", "shop"], &[("DATABASE_URL", &database.url())]);
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let printed = String::from_utf8(output.stdout).unwrap();
    let key: ApiKey = printed.strip_suffix('\n').unwrap().parse().unwrap();

    let row = "SELECT name, prefix, digest, scopes FROM api_keys WHERE name = 'shop'";
    let row = database.connect().await.query_one(row, &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>("prefix"), key.prefix());
    assert_eq!(row.get::<_, &[u8]>("digest"), key.digest().as_bytes());
    let scopes: Vec<&str> = row.get("scopes");
    assert_eq!(scopes, ["pets:read", "pets:write", "orders:read", "orders:write", "events:read"]);
}

#[tokio::test]
async fn keys_create_never_prints_the_same_key_twice() {
    let database = TestDatabase::new().await;
    let create = || run(&["keys", "create", "--name", "shop"], &[("DATABASE_URL", &database.url())]).stdout;
    assert_ne!(create(), create());
}

#[tokio::test]
async fn keys_create_refuses_a_bad_name_or_scope() {
    for arguments in [
        &["keys", "create"][..],
        &["keys", "create", "--name", ""],
        &["keys", "create", "--name", " "],
        &["keys", "create", "--name", "shop", "--scope", "pets"],
    ] {
        let output = run(arguments, &[("DATABASE_URL", "postgresql://127.0.0.1:1/none")]);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn serve_refuses_invalid_settings_at_startup() {
    for (flag, value) in [
        ("--listen", "8080"),
        ("--public-base-url", "https://api.example.com"),
        ("--staging-base-url", "https://staging.example.com/v1"),
        ("--cors-origin", "*"),
        ("--get-pet-removal", "2029-01-01"),
        ("--header-timeout", "0s"),
        ("--database-connections", "0"),
        ("--default-rate-limit", "fast"),
        ("--max-requests", "0"),
        ("--trusted-proxy", "balancer"),
    ] {
        let output = run(&["serve", flag, value], &[("DATABASE_URL", "postgresql://127.0.0.1:1/none")]);
        assert_eq!(output.status.code(), Some(2), "{flag} {value}");
    }
    for url in [
        "host=db",
        "postgresql://127.0.0.1:1/none?sslmode=verify-ca",
        "postgresql://127.0.0.1:1/x?nonsense=1",
    ] {
        for command in ["serve", "migrate", "export", "seed"] {
            let output = run(&[command], &[("DATABASE_URL", url)]);
            assert_eq!(output.status.code(), Some(2), "{command} {url}");
        }
    }
}

#[test]
fn what_stops_the_service_is_logged_as_json() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (flag, value, code, cause) in [
        ("--listen", &*address, 1, "Address already in use"),
        ("--listen", "8080", 2, "error: invalid value '8080' for '--listen <ADDRESS>'"),
        ("--database-url", "host=db", 2, "the database URL must start with postgresql://"),
    ] {
        let output = run(&["serve", flag, value], &[("DATABASE_URL", "postgresql://127.0.0.1:1/none")]);
        assert_eq!(output.status.code(), Some(code), "{flag} {value}");
        let log = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let last = lines.last().unwrap();
        assert_eq!(last["level"], "ERROR", "{log}");
        assert!(last["cause"].as_str().unwrap().contains(cause), "{log}");
    }
}

#[test]
fn an_error_is_printed_even_if_nothing_is_logged() {
    let output = run(&["serve", "--log", "off", "--database-url", "host=db"], &[]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "petstore: the database URL must start with postgresql://\n");
}

#[test]
fn an_error_names_its_causes_but_no_password() {
    let output = run(&["migrate"], &[("DATABASE_URL", "postgresql://shop:secret@127.0.0.1:1/petstore")]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("petstore: cannot migrate the database: "), "{error}");
    assert!(error.contains("Connection refused"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}

#[test]
fn serve_names_the_address_that_is_already_in_use() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["serve", "--listen", &address], &[("DATABASE_URL", "postgresql://127.0.0.1:1/none")]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&format!("cannot listen on {address}: Address already in use")), "{error}");
}

#[test]
fn scripts_find_the_same_exit_codes() {
    let nowhere = "postgresql://127.0.0.1:1/none";
    let mut text = String::new();
    for command in [
        &["serve"][..],
        &["doctor"],
        &["migrate"],
        &["keys", "create", "--name", "shop"],
        &["keys", "list"],
        &["keys", "show", "1"],
        &["keys", "rotate", "1", "--overlap", "1h"],
        &["keys", "revoke", "1"],
        &["keys", "apply", "/dev/null"],
        &["keys", "generate"],
        &["import", "/dev/null", "--format", "csv"],
        &["export"],
        &["events"],
        &["openapi"],
        &["demo"],
        &["seed"],
    ] {
        writeln!(text, "petstore {}", command.join(" ")).unwrap();
        let url = |url| -> Vec<(&str, &str)> { vec![("DATABASE_URL", url)] };
        for (case, flags, environment) in [
            ("help", &["--help"][..], vec![]),
            ("unknown flag", &["--nonsense"], url(nowhere)),
            ("unknown argument", &["1", "2", "3"], url(nowhere)),
            ("invalid log filter", &["--log", "a=b=c"], url(nowhere)),
            ("missing environment file", &["--env-file", "/nonexistent"], url(nowhere)),
            ("unknown variable", &[], [url(nowhere), vec![("PETSTORE_LISTN", "none")]].concat()),
            ("no database", &[], vec![]),
            ("invalid database URL", &[], url("host=none")),
            ("unreachable database", &[], url(nowhere)),
        ] {
            // `demo` starts its own database, and `serve` waits for one.
            if (command == ["demo"] && case == "no database")
                || (command == ["serve"] && case == "unreachable database")
            {
                continue;
            }
            let code = run(&[command, flags].concat(), &environment).status.code();
            writeln!(text, "  {case}: {}", code.unwrap()).unwrap();
        }
    }
    insta::assert_snapshot!("exit_codes", text);
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let mut child = petstore(&["openapi"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The reader closes the pipe after one byte.
    let mut byte = [0];
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut byte).unwrap();
    drop(output);
    let end = child.wait_with_output().unwrap();
    assert!(end.status.success());
    assert_eq!(String::from_utf8(end.stderr).unwrap(), "");
}

#[tokio::test]
async fn the_log_is_json_with_one_line_per_request_and_no_secrets_when_stderr_is_not_a_terminal() {
    let database = TestDatabase::new().await;
    let service = ServeProcess::start(&database.url(), &["--log", "trace"]);
    let key = crate::support::postgres::key();
    let without_key = Client::new(service.address, None);
    service.client.get("/v1/pets?limit=5").await;
    service.client.get(&format!("/v1/pets/{}", key.reveal())).await;
    service.client.get(&format!("/v1/pets?api_key={}", key.reveal())).await;
    service.client.post_text("/v1/pets", &format!(r#"{{"name": "Rex", "{}": 1}}"#, key.reveal())).await;
    without_key.get(&format!("/v1/{}", key.reveal())).await;
    let (exited_well, log) = service.terminate();
    assert!(exited_well);
    assert!(!log.contains(key.reveal()), "a key is in the log");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let requests: Vec<_> = lines
        .iter()
        .filter(|line| line["message"] == "request")
        .map(|line| {
            assert_eq!(line["request_id"].as_str().unwrap().len(), 32);
            assert!(line["microseconds"].is_u64());
            (
                line["method"].as_str().unwrap(),
                line["route"].as_str().unwrap(),
                line["status"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        requests,
        [
            ("GET", "/v1/pets", 200),
            ("GET", "/v1/pets/{petId}", 404),
            ("GET", "/v1/pets", 400),
            ("POST", "/v1/pets", 400),
            ("GET", "-", 401),
        ]
    );
    let messages: Vec<&str> = lines.iter().filter_map(|line| line["message"].as_str()).collect();
    assert!(messages.contains(&"listening") && messages.contains(&"stopped"), "{messages:?}");
}
