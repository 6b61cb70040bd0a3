//! The processes under test, and the tools that measure them.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Outcome;

/// The service, from the same build as this program.
pub(crate) const PETSTORE: &str =
    if cfg!(debug_assertions) { "target/debug/petstore" } else { "target/release/petstore" };

/// The log of the service, unless it is a node behind a load balancer.
pub(crate) const LOG: &str = "target/suite-petstore.log";

/// The URL of the database to test on.
pub(crate) fn database_url() -> Outcome<String> {
    env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL, or use `make suite`".into())
}

/// The URL of another database on the same server.
pub(crate) fn sibling(url: &str, name: &str) -> String {
    format!("{}/{name}", url.rsplit_once('/').map_or(url, |(server, _)| server))
}

/// Runs a program to completion and returns its standard output.
pub(crate) fn output(program: &str, arguments: &[&str]) -> Outcome<String> {
    run(Command::new(program).args(arguments))
}

fn run(command: &mut Command) -> Outcome<String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A private PostgreSQL, stopped on drop.
pub(crate) struct Postgres {
    directory: PathBuf,
    kept: bool,
    /// More options of the server, instead of those in `POSTGRES_OPTIONS`.
    options: Option<String>,
    /// The directory of its programs, instead of that in `PGBIN`.
    bin: Option<PathBuf>,
}

impl Postgres {
    /// In a new directory, removed on drop.
    pub(crate) fn temporary() -> Self {
        let directory = env::temp_dir().join(format!("petstore-suites-{}", std::process::id()));
        Self { directory, kept: false, options: None, bin: None }
    }

    /// In a directory that is kept, and may exist already.
    pub(crate) fn kept(directory: PathBuf) -> Self {
        Self { directory, kept: true, options: None, bin: None }
    }

    /// One of several in a new directory, removed on drop. Its name is that of the directory.
    pub(crate) fn member(directory: PathBuf, options: &str) -> Self {
        Self { directory, kept: false, options: Some(options.to_owned()), bin: None }
    }

    /// With the programs in `bin`, in a new directory, removed on drop.
    pub(crate) fn of_version(directory: PathBuf, bin: PathBuf) -> Self {
        Self { directory, kept: false, options: None, bin: Some(bin) }
    }

    /// Starts it, and returns its URL.
    pub(crate) fn start(&self) -> Outcome<String> {
        let mut last = String::new();
        // The processes of a killed server may need a moment to exit.
        for _ in 0..10 {
            match self.script("start", &[]) {
                Ok(url) => return Ok(url),
                Err(error) => last = error.to_string(),
            }
            sleep(Duration::from_millis(300));
        }
        Err(last.into())
    }

    /// Starts it as a standby, with a new copy of the other server's data, and returns its URL.
    pub(crate) fn start_as_standby_of(&self, other: &Self) -> Outcome<String> {
        let data = self.directory.join("data");
        if data.exists() {
            fs::remove_dir_all(data)?;
        }
        self.script("standby", &[&other.directory.to_string_lossy()])
    }

    /// Makes a standby accept writes.
    pub(crate) fn promote(&self) -> Outcome {
        self.script("promote", &[]).map(drop)
    }

    /// Stops it in fast mode.
    pub(crate) fn stop(&self) -> Outcome {
        self.script("stop", &[]).map(drop)
    }

    /// Stops it without a checkpoint: its next start recovers as after a crash.
    pub(crate) fn crash(&self) -> Outcome {
        self.script("stop", &["immediate"]).map(drop)
    }

    fn script(&self, command: &str, arguments: &[&str]) -> Outcome<String> {
        let mut script = Command::new("scripts/postgres");
        script.arg(command).arg(&self.directory).args(arguments);
        if let Some(options) = &self.options {
            script.env("POSTGRES_OPTIONS", options);
        }
        if let Some(bin) = &self.bin {
            script.env("PGBIN", bin);
        }
        run(&mut script).map(|printed| printed.trim().to_owned())
    }

    /// The last lines of its log.
    pub(crate) fn end_of_log(&self) -> String {
        let log = fs::read_to_string(self.directory.join("data/server.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!("{}:\n{}", self.directory.display(), lines[lines.len().saturating_sub(10)..].join("\n"))
    }

    /// The process id of the postmaster.
    pub(crate) fn pid(&self) -> Outcome<u32> {
        let lines = fs::read_to_string(self.directory.join("data/postmaster.pid"))?;
        Ok(lines.lines().next().unwrap_or_default().parse()?)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.crash();
        if !self.kept {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// Runs SQL.
pub(crate) fn psql(url: &str, sql: &str) -> Outcome<String> {
    output("psql", &[url, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--command", sql])
}

/// The pets with this prefix: by name, their number and the lowest id.
pub(crate) fn pets_by_name(url: &str, prefix: &str) -> Outcome<BTreeMap<String, (i64, i64)>> {
    let sql = format!("SELECT name, count(*), min(id) FROM pets WHERE name LIKE '{prefix}%' GROUP BY name");
    let mut pets = BTreeMap::new();
    for row in psql(url, &sql)?.lines() {
        let fields: Vec<&str> = row.split('|').collect();
        let [name, count, id] = fields[..] else { return Err(format!("not a row: {row}").into()) };
        pets.insert(name.to_owned(), (count.parse()?, id.parse()?));
    }
    Ok(pets)
}

/// Migrates a database, fills it with pets, 90 % of them available, and returns an API key. Needs a superuser.
pub(crate) fn prepare(url: &str, pets: u64) -> Outcome<String> {
    let key = fill(url, pets)?;
    psql(url, "VACUUM ANALYZE")?;
    psql(url, "CHECKPOINT")?;
    Ok(key)
}

/// The same with the privileges of the service.
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

/// An API key for a database that is filled already.
pub(crate) fn new_key(url: &str) -> Outcome<String> {
    Ok(output(PETSTORE, &["keys", "create", "--name", "suite", "--database-url", url])?.trim().to_owned())
}

/// A server under test, killed on drop.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// The service's admin address; a peer has none.
    admin: Option<SocketAddr>,
}

impl Server {
    /// The service with default settings, everything on.
    pub(crate) fn petstore(url: &str) -> Outcome<Self> {
        Self::with_flags(url, &[])
    }

    /// The service with more flags.
    pub(crate) fn with_flags(url: &str, flags: &[&str]) -> Outcome<Self> {
        Self::with_log(url, flags, LOG)
    }

    /// The service with more flags and its own log.
    pub(crate) fn with_log(url: &str, flags: &[&str], log: &str) -> Outcome<Self> {
        Self::program(PETSTORE, url, flags, log)
    }

    /// The service on this address. It accepts `holdSeconds`.
    pub(crate) fn petstore_at(url: &str, address: SocketAddr) -> Outcome<Self> {
        let (one, other) = free_addresses()?;
        let admin = if one == address { other } else { one };
        Self::start_program(
            PETSTORE,
            url,
            (address, admin),
            &["--drain-delay", "0s", "--order-hold", "168h"],
            LOG,
        )
    }

    /// The service with room for thousands of connections that stay open.
    pub(crate) fn with_many_connections(url: &str) -> Outcome<Self> {
        let limits = ["--header-timeout", "120s", "--max-connections", "15000", "--max-requests", "15000"];
        Self::with_flags(url, &limits)
    }

    /// A node behind a load balancer: on these addresses, with the default drain delay.
    pub(crate) fn node(url: &str, address: SocketAddr, admin: SocketAddr) -> Outcome<Self> {
        Self::node_of(PETSTORE, url, address, admin)
    }

    /// The same of another version.
    pub(crate) fn node_of(program: &str, url: &str, address: SocketAddr, admin: SocketAddr) -> Outcome<Self> {
        Self::start_program(program, url, (address, admin), &["--header-timeout", "75s"], &node_log(address))
    }

    /// Another version of the service, with more flags and its own log.
    pub(crate) fn program(program: &str, url: &str, flags: &[&str], log: &str) -> Outcome<Self> {
        Self::start_program(program, url, free_addresses()?, &[&["--drain-delay", "0s"], flags].concat(), log)
    }

    fn start_program(
        program: &str,
        url: &str,
        (address, admin): (SocketAddr, SocketAddr),
        flags: &[&str],
        log: &str,
    ) -> Outcome<Self> {
        let mut command = Command::new(program);
        command
            .args(["serve", "--listen", &address.to_string(), "--admin-listen", &admin.to_string()])
            .args(flags)
            .env("DATABASE_URL", url)
            .stderr(File::create(log)?);
        let mut server = Self::start(command, address)?;
        server.admin = Some(admin);
        Ok(server)
    }

    /// CPU seconds used so far.
    pub(crate) fn cpu_seconds(&self) -> Outcome<f64> {
        cpu_seconds(self.child.id()).map(|time| time.own)
    }

    /// The resident memory, in kilobytes.
    pub(crate) fn kilobytes(&self) -> Outcome<f64> {
        kilobytes(self.child.id(), "VmRSS:")
    }

    /// Sends SIGTERM and returns how long the exit took; a non-zero exit code is an error.
    pub(crate) async fn terminate(&mut self) -> Outcome<Duration> {
        let started = Instant::now();
        Command::new("kill").arg(self.child.id().to_string()).status()?;
        loop {
            if let Some(exit) = self.child.try_wait()? {
                return if exit.success() { Ok(started.elapsed()) } else { Err(exit.to_string().into()) };
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The peer on FastAPI.
    pub(crate) fn fastapi(url: &str, key: &str) -> Outcome<Self> {
        let address = free_address()?;
        let mut command = Command::new("target/tools/peers/bin/uvicorn");
        command
            .args(["--app-dir", "suites/peers", "fastapi_peer:app", "--workers", "2", "--no-access-log"])
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

    /// The peer on axum.
    pub(crate) fn axum(url: &str, key: &str) -> Outcome<Self> {
        let address = free_address()?;
        let mut command = Command::new("target/axum-peer/release/axum-peer");
        command.env("DATABASE_URL", url).env("KEY", key).env("PORT", address.port().to_string());
        Self::start(command, address)
    }

    /// The thinnest server on the same parts.
    pub(crate) fn thin(url: &str) -> Outcome<Self> {
        let address = free_address()?;
        let mut command = Command::new("target/release/petstore-thin");
        command.env("DATABASE_URL", url).env("PORT", address.port().to_string());
        Self::start(command, address)
    }

    fn start(mut command: Command, address: SocketAddr) -> Outcome<Self> {
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = spawned.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
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

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The value of the metric with this name and these labels, or 0.
    pub(crate) fn metric(&self, name: &str) -> Outcome<f64> {
        let admin = self.admin.ok_or("a peer has no metrics")?;
        let metrics = output("curl", &["--silent", "--fail", &format!("http://{admin}/metrics")])?;
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(Ok(0.0), |value| Ok(value.parse()?))
    }

    /// The number of open file descriptors.
    pub(crate) fn descriptors(&self) -> Outcome<f64> {
        let count = fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count();
        Ok(f64::from(u32::try_from(count)?))
    }

    /// The peak resident memory, in megabytes.
    pub(crate) fn peak_megabytes(&self) -> Outcome<f64> {
        peak_megabytes(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        // A peer's parent process stops its workers on SIGTERM only.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// CPU seconds of a process, and of its children that have exited.
pub(crate) struct CpuTime {
    pub(crate) own: f64,
    pub(crate) exited_children: f64,
}

/// The CPU time that a process has used.
pub(crate) fn cpu_seconds(id: u32) -> Outcome<CpuTime> {
    let statistics = fs::read_to_string(format!("/proc/{id}/stat"))?;
    let fields: Vec<&str> = statistics.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // In hundredths of a second: user time, then system time.
    let seconds = |place: usize| -> Outcome<f64> {
        let (user, system) = (fields.get(place).ok_or("no time")?, fields.get(place + 1).ok_or("no time")?);
        Ok((user.parse::<f64>()? + system.parse::<f64>()?) / 100.0)
    };
    Ok(CpuTime { own: seconds(11)?, exited_children: seconds(13)? })
}

/// Waits until nothing else runs on the machine, or until the deadline.
pub(crate) fn wait_until_idle(deadline: Instant) -> Outcome {
    const IDLE: f64 = 0.85;
    while Instant::now() < deadline {
        let (idle_before, all_before) = cpu_ticks()?;
        sleep(Duration::from_millis(250));
        let (idle, all) = cpu_ticks()?;
        if idle - idle_before >= IDLE * (all - all_before) {
            break;
        }
    }
    Ok(())
}

/// The ticks that the CPUs were idle, and all ticks, since the machine started.
fn cpu_ticks() -> Outcome<(f64, f64)> {
    let statistics = fs::read_to_string("/proc/stat")?;
    let first = statistics.lines().next().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal; the rest is contained in user and nice.
    let ticks: Vec<f64> =
        first.split_whitespace().skip(1).take(8).map(str::parse).collect::<Result<_, _>>()?;
    let [_, _, _, idle, iowait, ..] = ticks[..] else { return Err("no CPU times in /proc/stat".into()) };
    Ok((idle + iowait, ticks.iter().sum()))
}

/// The peak resident memory of a process, in megabytes.
pub(crate) fn peak_megabytes(id: u32) -> Outcome<f64> {
    Ok(kilobytes(id, "VmHWM:")? / 1024.0)
}

/// A line of `/proc/ID/status`.
fn kilobytes(id: u32, name: &str) -> Outcome<f64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or(format!("no {name}"))?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// The log of a node behind a load balancer.
pub(crate) fn node_log(address: SocketAddr) -> String {
    format!("target/suite-petstore-{}.log", address.port())
}

/// A free address.
pub(crate) fn free_address() -> Outcome<SocketAddr> {
    free_addresses().map(|(address, _)| address)
}

/// Two free addresses. Two separate calls could return the same one.
pub(crate) fn free_addresses() -> Outcome<(SocketAddr, SocketAddr)> {
    let (one, other) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
    Ok((one.local_addr()?, other.local_addr()?))
}

/// Transactions per second of PostgreSQL alone.
pub(crate) fn pgbench(url: &str, scripts: &[&str], pets: u64, clients: u16, seconds: u16) -> Outcome<f64> {
    let (pets, clients, seconds) = (format!("pets={pets}"), clients.to_string(), seconds.to_string());
    let jobs = if clients == "1" { "1" } else { "2" };
    let mut arguments = vec!["-n", "-M", "prepared", "-c", &clients, "-j", jobs, "-T", &seconds, "-D", &pets];
    for script in scripts {
        arguments.extend(["-f", *script]);
    }
    arguments.push(url);
    let report = output("pgbench", &arguments)?;
    let line = report.lines().find_map(|line| line.strip_prefix("tps = ")).ok_or("pgbench printed no tps")?;
    Ok(line.split(' ').next().unwrap_or_default().parse()?)
}

/// Throughput and CPU time at full load.
pub(crate) struct Cost {
    /// Requests per second.
    pub(crate) rate: f64,
    /// CPU time of the server's process per request, in microseconds: user and system time.
    pub(crate) cpu_micros: f64,
}

/// Measures a server at full load; any answer but a success fails the measurement.
pub(crate) fn wrk(
    server: &Server,
    workload: &str,
    key: &str,
    pets: u64,
    connections: u16,
    seconds: u16,
) -> Outcome<Cost> {
    let before = server.cpu_seconds()?;
    let load = load(server.address, workload, key, pets, connections, seconds)?;
    let used = server.cpu_seconds()? - before;
    Ok(Cost { rate: load.rate, cpu_micros: used / load.requests * 1e6 })
}

/// The throughput of a server at full load.
pub(crate) struct Load {
    /// Requests per second.
    pub(crate) rate: f64,
    /// Completed requests.
    pub(crate) requests: f64,
    /// Bytes per answer.
    pub(crate) bytes: f64,
    /// The 99th percentile of the latency, in milliseconds.
    pub(crate) p99: f64,
}

/// The same with more figures. `workload` is a name in suites/load/requests.lua, with arguments after spaces.
pub(crate) fn load(
    address: SocketAddr,
    workload: &str,
    key: &str,
    pets: u64,
    connections: u16,
    seconds: u16,
) -> Outcome<Load> {
    let threads = if connections == 1 { "1" } else { "2" };
    let (connections, seconds) = (connections.to_string(), format!("{seconds}s"));
    let (url, pets) = (format!("http://{address}"), pets.to_string());
    let mut arguments =
        vec!["-t", threads, "-c", &connections, "-d", &seconds, "--latency", "--timeout", "10s"];
    arguments.extend(["-s", "suites/load/requests.lua", &url, "--", key, &pets]);
    arguments.extend(workload.split(' '));
    let report = output("wrk", &arguments)?;
    if let Some(errors) =
        report.lines().find(|line| line.contains("Non-2xx") || line.contains("Socket errors"))
    {
        return Err(format!("{workload}: {errors}").into());
    }
    let after = |name: &str| {
        let line = report.lines().find_map(|line| line.trim_start().strip_prefix(name));
        line.map(str::trim).ok_or(format!("wrk printed no {name}"))
    };
    let rate = after("Requests/sec:")?.parse()?;
    let requests =
        report.lines().find_map(|line| line.split_once(" requests in ")).ok_or("wrk printed no requests")?;
    let requests = requests.0.trim().parse()?;
    let bytes =
        with_unit(after("Transfer/sec:")?, &[("KB", 1024.0), ("MB", 1_048_576.0), ("GB", 1_073_741_824.0)])?;
    let p99 = with_unit(after("99%")?, &[("us", 0.001), ("ms", 1.0), ("s", 1_000.0)])?;
    Ok(Load { rate, requests, bytes: bytes / rate, p99 })
}

/// Parses a number with a unit, by the factor of each unit.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Outcome<f64> {
    let found = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)));
    let (number, factor) = found.ok_or(format!("{text} has no known unit"))?;
    Ok(number.parse::<f64>()? * factor)
}

/// The version of wrk. (`wrk -v` exits with an error.)
pub(crate) fn wrk_version() -> Outcome<String> {
    let printed = String::from_utf8(Command::new("wrk").arg("-v").output()?.stdout)?;
    Ok(printed.split(" [").next().unwrap_or_default().to_owned())
}
