//! Prints a history as a shell script that reproduces it.

use super::operation::{Action, CLIENTS, KeyOfClient, Number, Request, Sql, Step};

const PREAMBLE: &str = "\
# Set URL_0 and URL_1 to two nodes, KEY_0 to KEY_4 to API keys, and DATABASE_URL. KEY_1 is the successor of KEY_0.
id() { sed -n 's/.*{\"id\":\\([0-9]*\\).*/\\1/p' \"answer-$1\"; }
tag() { sed -n 's/^etag: //Ip' \"answer-$1\" | tr -d '\\r'; }
send() { n=$1 && shift && curl -sig \"$@\" -o \"answer-$n\" && echo \"$n: $(sed -n '1p;$p' \"answer-$n\" | tr -d '\\r' | tr '\\n' ' ')\"; }
";

/// The commands of a history.
pub(super) fn script(steps: &[Step]) -> String {
    let key =
        |(index, client): (usize, &KeyOfClient)| format!("# KEY_{index}: {}\n", client.scopes.join(" "));
    let keys = CLIENTS.iter().enumerate().map(key);
    let commands = steps.iter().map(|step| match &step.action {
        Action::Send(request) => command(step, request),
        Action::Repeat(earlier) => match steps.iter().find(|step| step.number == *earlier) {
            Some(Step { action: Action::Send(request), .. }) => {
                format!("# Step {earlier} again:\n{}", command(step, request))
            }
            _ => String::new(),
        },
        Action::Sql(sql) => {
            let statement = sql.statement(&|number| format!("$(id {number})"));
            let expire = if matches!(sql, Sql::AgeOrder(_)) { "; sleep 3" } else { "" };
            format!("psql \"$DATABASE_URL\" -qc \"{}\"{expire}\n", statement.replace('"', "\\\""))
        }
    });
    [PREAMBLE.to_owned()].into_iter().chain(keys).chain(commands).collect()
}

fn command(step: &Step, request: &Request) -> String {
    let id = |number: Number| {
        if number == Number::MAX { "9007199254740991".into() } else { format!("$(id {number})") }
    };
    let (_, method, path, body) = request.operation.http(&id);
    let header = |name: &str, value: String| format!(" -H \"{name}: {value}\"");
    let body = body.map(|body| body.replace('"', "\\\""));
    format!(
        "send {} -X {method} \"$URL_{}{path}\"{}{}{}{}\n",
        step.number,
        step.node,
        header("Authorization", format!("Bearer $KEY_{}", request.client)),
        request.key.map(|key| header("Idempotency-Key", format!("key-{key}"))).unwrap_or_default(),
        request
            .tag
            .map(|tag| header(
                if method == "GET" { "If-None-Match" } else { "If-Match" },
                format!("$(tag {tag})")
            ))
            .unwrap_or_default(),
        body.map(|body| header("Content-Type", "application/json".into()) + &format!(" -d \"{body}\""))
            .unwrap_or_default(),
    )
}
