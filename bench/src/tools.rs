//! The processes that are measured and that measure.

use std::env;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Outcome;

/// The service as it is released.
pub(crate) const PETSTORE: &str = "target/release/petstore";

/// Where the log of the service is, if there is one service.
const LOG: &str = "target/bench-petstore.log";
/// The same, if it is attacked.
pub(crate) const FUZZ_LOG: &str = "target/fuzz-petstore.log";
/// No balancer has to hear of its end.
const AT_ONCE: &[&str] = &["--drain-delay", "0s"];

/// The address of the database to measure on.
pub(crate) fn database_url() -> Outcome<String> {
    env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL, or use the Makefile's targets".into())
}

/// The address of another database on the same server.
pub(crate) fn sibling(url: &str, name: &str) -> String {
    format!("{}/{name}", url.rsplit_once('/').map_or(url, |(server, _)| server))
}

/// Runs a program to its end and returns what it printed.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Outcome<String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A PostgreSQL of its own, which ends with this.
pub(crate) struct Postgres {
    directory: PathBuf,
    kept: bool,
}

impl Postgres {
    /// In a new directory, which ends with this as well.
    pub(crate) fn temporary() -> Self {
        let directory = env::temp_dir().join(format!("petstore-bench-{}", std::process::id()));
        Self { directory, kept: false }
    }

    /// In a directory that stays, and may be there already.
    pub(crate) fn kept(directory: PathBuf) -> Self {
        Self { directory, kept: true }
    }

    /// Starts it, and returns its address.
    pub(crate) fn start(&self) -> Outcome<String> {
        let directory = self.directory.to_string_lossy();
        let mut said = String::new();
        // The processes of a server that was killed may need a moment to go.
        for _ in 0..10 {
            match output("scripts/postgres", &["start", &directory]) {
                Ok(url) => return Ok(url.trim().to_owned()),
                Err(error) => said = error.to_string(),
            }
            sleep(Duration::from_millis(300));
        }
        Err(said.into())
    }

    /// Stops it as an operator does.
    pub(crate) fn stop(&self) -> Outcome {
        output("scripts/postgres", &["stop", &self.directory.to_string_lossy()]).map(drop)
    }

    /// Its first process.
    pub(crate) fn pid(&self) -> Outcome<u32> {
        let lines = fs::read_to_string(self.directory.join("data/postmaster.pid"))?;
        Ok(lines.lines().next().unwrap_or_default().parse()?)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = output("scripts/postgres", &["stop", &self.directory.to_string_lossy(), "immediate"]);
        if !self.kept {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// Runs SQL.
pub(crate) fn psql(url: &str, sql: &str) -> Outcome<String> {
    output("psql", &[url, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--command", sql])
}

/// Migrates a database, fills it with pets, 90 % of them available, and returns a key. Needs a role that may do anything.
pub(crate) fn prepare(url: &str, pets: u64) -> Outcome<String> {
    let key = fill(url, pets)?;
    psql(url, "VACUUM ANALYZE")?;
    psql(url, "CHECKPOINT")?;
    Ok(key)
}

/// The same, with a role that may do no more than the service must.
pub(crate) fn fill(url: &str, pets: u64) -> Outcome<String> {
    output(PETSTORE, &["migrate", "--database-url", url])?;
    psql(
        url,
        &format!(
            "INSERT INTO pets (name, category_id, status) SELECT 'Pet number ' || n, n % 100, \
             (CASE WHEN n % 100 = 0 THEN 'pending' WHEN n % 100 < 10 THEN 'sold' ELSE 'available' END)::pet_status \
             FROM generate_series(1, {pets}) n"
        ),
    )?;
    new_key(url)
}

/// A key to a database that was filled before.
pub(crate) fn new_key(url: &str) -> Outcome<String> {
    Ok(output(PETSTORE, &["keys", "create", "--name", "bench", "--database-url", url])?.trim().to_owned())
}

/// A server under measurement, killed with this value.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Where the service has its health and metrics; a peer has none.
    admin: Option<SocketAddr>,
}

impl Server {
    /// The service with everything on and default settings, its log in a file.
    pub(crate) fn petstore(url: &str) -> Outcome<Self> {
        let (address, admin) = free_addresses()?;
        Self::petstore_with(url, address, admin, AT_ONCE, LOG)
    }

    /// The same at this address.
    pub(crate) fn petstore_at(url: &str, address: SocketAddr) -> Outcome<Self> {
        let (one, other) = free_addresses()?;
        Self::petstore_with(url, address, if one == address { other } else { one }, AT_ONCE, LOG)
    }

    /// The service without a log and metrics.
    pub(crate) fn petstore_unobserved(url: &str) -> Outcome<Self> {
        let flags = [AT_ONCE, &["--log", "off", "--without-metrics"]].concat();
        let (address, admin) = free_addresses()?;
        Self::petstore_with(url, address, admin, &flags, LOG)
    }

    /// The service with places for many, who may stay.
    pub(crate) fn petstore_for_crowds(url: &str) -> Outcome<Self> {
        let flags =
            [AT_ONCE, &["--header-timeout", "120s", "--max-connections", "15000", "--max-requests", "15000"]]
                .concat();
        let (address, admin) = free_addresses()?;
        Self::petstore_with(url, address, admin, &flags, LOG)
    }

    /// The service with little patience, and a log of what goes wrong only.
    pub(crate) fn petstore_for_fuzzing(url: &str) -> Outcome<Self> {
        let flags = [AT_ONCE, &["--header-timeout", "2s", "--body-timeout", "2s", "--log", "warn"]].concat();
        let (address, admin) = free_addresses()?;
        Self::petstore_with(url, address, admin, &flags, FUZZ_LOG)
    }

    /// The service as a balancer knows it: at these addresses, and with the time that it takes to stop by default.
    pub(crate) fn petstore_node(url: &str, address: SocketAddr, admin: SocketAddr) -> Outcome<Self> {
        let log = format!("target/bench-petstore-{}.log", address.port());
        Self::petstore_with(url, address, admin, &["--header-timeout", "75s"], &log)
    }

    fn petstore_with(
        url: &str,
        address: SocketAddr,
        admin: SocketAddr,
        flags: &[&str],
        log: &str,
    ) -> Outcome<Self> {
        let mut command = Command::new(PETSTORE);
        command
            .args(["serve", "--listen", &address.to_string(), "--admin-listen", &admin.to_string()])
            .args(flags)
            .env("DATABASE_URL", url)
            .stderr(File::create(log)?);
        let mut server = Self::start(command, address)?;
        server.admin = Some(admin);
        Ok(server)
    }

    /// The processor time that it has used.
    pub(crate) fn processor_seconds(&self) -> Outcome<f64> {
        processor_seconds(self.child.id()).map(|time| time.own)
    }

    /// Its memory now, in kilobytes.
    pub(crate) fn kilobytes(&self) -> Outcome<f64> {
        kilobytes(self.child.id(), "VmRSS:")
    }

    /// Ends it with SIGTERM and returns how long that took; a bad end is an error.
    pub(crate) async fn terminate(&mut self) -> Outcome<Duration> {
        let began = Instant::now();
        Command::new("kill").arg(self.child.id().to_string()).status()?;
        loop {
            if let Some(end) = self.child.try_wait()? {
                return if end.success() { Ok(began.elapsed()) } else { Err(end.to_string().into()) };
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The peer on FastAPI.
    pub(crate) fn fastapi(url: &str, key: &str) -> Outcome<Self> {
        let address = free_address()?;
        let mut command = Command::new("target/tools/peers/bin/uvicorn");
        command
            .args(["--app-dir", "bench/peers", "fastapi_peer:app", "--workers", "2", "--no-access-log"])
            .args(["--host", "127.0.0.1", "--port", &address.port().to_string()])
            .env("DATABASE_URL", url)
            .env("KEY", key);
        Self::start(command, address)
    }

    /// The peer on Fastify.
    pub(crate) fn fastify(url: &str, key: &str) -> Outcome<Self> {
        let address = free_address()?;
        let mut command = Command::new("node");
        command
            .arg("target/tools/peers/fastify_peer.mjs")
            .env("DATABASE_URL", url)
            .env("KEY", key)
            .env("PORT", address.port().to_string());
        Self::start(command, address)
    }

    fn start(mut command: Command, address: SocketAddr) -> Outcome<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let server = Self { child, address, admin: None };
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(address).is_err() {
            if Instant::now() > deadline {
                return Err(format!("{command:?} does not listen").into());
            }
            sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Ends it without a warning.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What the service says of itself: the value of the metric with this name and these labels, or 0.
    pub(crate) fn metric(&self, name: &str) -> Outcome<f64> {
        let admin = self.admin.ok_or("a peer has no metrics")?;
        let metrics = output("curl", &["--silent", "--fail", &format!("http://{admin}/metrics")])?;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(Ok(0.0), |value| Ok(value.parse()?))
    }

    /// Its open files and connections now.
    pub(crate) fn descriptors(&self) -> Outcome<f64> {
        let count = fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count();
        Ok(f64::from(u32::try_from(count)?))
    }

    /// The most memory that the process ever had, in megabytes.
    pub(crate) fn peak_megabytes(&self) -> Outcome<f64> {
        peak_megabytes(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // A peer's workers end with the process that started them only if it is asked politely.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The processor time of a process, and of those of its children that have ended.
pub(crate) struct ProcessorTime {
    pub(crate) own: f64,
    pub(crate) ended_children: f64,
}

/// The processor time that a process has used.
pub(crate) fn processor_seconds(id: u32) -> Outcome<ProcessorTime> {
    let statistics = fs::read_to_string(format!("/proc/{id}/stat"))?;
    let fields: Vec<&str> = statistics.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // In hundredths, by the program itself and for it by the kernel.
    let seconds = |place: usize| -> Outcome<f64> {
        let (program, kernel) =
            (fields.get(place).ok_or("no time")?, fields.get(place + 1).ok_or("no time")?);
        Ok((program.parse::<f64>()? + kernel.parse::<f64>()?) / 100.0)
    };
    Ok(ProcessorTime { own: seconds(11)?, ended_children: seconds(13)? })
}

/// The most memory that a process ever had, in megabytes.
pub(crate) fn peak_megabytes(id: u32) -> Outcome<f64> {
    Ok(kilobytes(id, "VmHWM:")? / 1024.0)
}

/// A line of what the kernel says of a process.
fn kilobytes(id: u32, name: &str) -> Outcome<f64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or(format!("no {name}"))?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// An address that nobody listens on.
pub(crate) fn free_address() -> Outcome<SocketAddr> {
    free_addresses().map(|(address, _)| address)
}

/// Two of them: asked for one after the other, they could be the same.
pub(crate) fn free_addresses() -> Outcome<(SocketAddr, SocketAddr)> {
    let (one, other) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    Ok((one.local_addr()?, other.local_addr()?))
}

/// Transactions a second of the bare engine.
pub(crate) fn pgbench(url: &str, scripts: &[&str], pets: u64, clients: u16, seconds: u16) -> Outcome<f64> {
    let (pets, clients, seconds) = (format!("pets={pets}"), clients.to_string(), seconds.to_string());
    let jobs = if clients == "1" { "1" } else { "2" };
    let mut arguments = vec!["-n", "-M", "prepared", "-c", &clients, "-j", jobs, "-T", &seconds, "-D", &pets];
    for script in scripts {
        arguments.extend(["-f", *script]);
    }
    arguments.push(url);
    let report = output("pgbench", &arguments)?;
    let line = report.lines().find_map(|line| line.strip_prefix("tps = ")).ok_or("pgbench said no tps")?;
    Ok(line.split(' ').next().unwrap_or_default().parse()?)
}

/// Requests a second at full load; an answer that is not a success is a failure of the measurement.
pub(crate) fn wrk(
    server: &Server,
    script: &str,
    key: &str,
    pets: u64,
    connections: u16,
    seconds: u16,
) -> Outcome<f64> {
    load(server.address, script, key, pets, connections, seconds).map(|load| load.rate)
}

/// What a server did at full load.
pub(crate) struct Load {
    /// Requests a second.
    pub(crate) rate: f64,
    /// Bytes of an answer.
    pub(crate) bytes: f64,
    /// The time of 99 % of the requests, in milliseconds.
    pub(crate) p99: f64,
}

/// The same with more figures. A script may have arguments of its own, after spaces.
pub(crate) fn load(
    address: SocketAddr,
    script: &str,
    key: &str,
    pets: u64,
    connections: u16,
    seconds: u16,
) -> Outcome<Load> {
    let threads = if connections == 1 { "1" } else { "2" };
    let (connections, seconds) = (connections.to_string(), format!("{seconds}s"));
    let (url, pets) = (format!("http://{address}"), pets.to_string());
    let mut words = script.split(' ');
    let file = format!("bench/load/{}.lua", words.next().unwrap_or_default());
    assert!(Path::new(&file).exists(), "{file}");
    let mut arguments =
        vec!["-t", threads, "-c", &connections, "-d", &seconds, "--latency", "--timeout", "10s"];
    arguments.extend(["-s", &file, &url, "--", key, &pets]);
    arguments.extend(words);
    let report = output("wrk", &arguments)?;
    if let Some(errors) =
        report.lines().find(|line| line.contains("Non-2xx") || line.contains("Socket errors"))
    {
        return Err(format!("{script}: {errors}").into());
    }
    let after = |name: &str| {
        let line = report.lines().find_map(|line| line.trim_start().strip_prefix(name));
        line.map(str::trim).ok_or(format!("wrk said no {name}"))
    };
    let rate = after("Requests/sec:")?.parse()?;
    let bytes =
        with_unit(after("Transfer/sec:")?, &[("KB", 1024.0), ("MB", 1_048_576.0), ("GB", 1_073_741_824.0)])?;
    let p99 = with_unit(after("99%")?, &[("us", 0.001), ("ms", 1.0), ("s", 1_000.0)])?;
    Ok(Load { rate, bytes: bytes / rate, p99 })
}

/// A number with a unit after it, by what each unit stands for.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Outcome<f64> {
    let found = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = found.ok_or(format!("{text} has no known unit"))?;
    Ok(number.parse::<f64>()? * factor)
}

/// Which wrk it is. (It exits with an error when asked.)
pub(crate) fn wrk_version() -> Outcome<String> {
    let said = String::from_utf8(Command::new("wrk").arg("-v").output()?.stdout)?;
    Ok(said.split(" [").next().unwrap_or_default().to_owned())
}
