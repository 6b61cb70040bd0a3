//! HAProxy with the configuration in deploy/.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use super::process::{free_address, output};
use super::service_nodes::Node;
use crate::Outcome;

/// The load balancer's configuration, as shipped.
const SETTINGS: &str = "deploy/haproxy/haproxy.cfg";

/// HAProxy, killed on drop.
pub(crate) struct Balancer {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Balancer {
    pub(crate) fn start([one, two]: &[Node; 2]) -> Outcome<Self> {
        let address = free_address()?;
        let mut settings = fs::read_to_string(SETTINGS)?;
        for (documented, ours) in [
            ("127.0.0.1:8000", address.to_string()),
            ("127.0.0.1:8081", one.address.to_string()),
            ("check port 9091", format!("check port {}", one.admin.port())),
            ("127.0.0.1:8082", two.address.to_string()),
            ("check port 9092", format!("check port {}", two.admin.port())),
        ] {
            if settings.matches(documented).count() != 1 {
                return Err(format!("{SETTINGS} does not contain `{documented}` exactly once").into());
            }
            settings = settings.replace(documented, &ours);
        }
        let file = "target/suite-haproxy.cfg";
        fs::write(file, settings)?;
        output("haproxy", &["-c", "-q", "-f", file])?;
        let child = Command::new("haproxy")
            .args(["-db", "-f", file])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create("target/suite-haproxy.log")?)
            .spawn()?;
        let mut balancer = Self { child, address };
        // It considers every node up until its first health check.
        sleep(Duration::from_secs(2));
        if let Some(end) = balancer.child.try_wait()? {
            return Err(format!("HAProxy exited with {end}: see target/suite-haproxy.log").into());
        }
        Ok(balancer)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
