//! The address of a client, for the log.

use std::net::IpAddr;

use hyper::header::{self, HeaderMap, HeaderName};
use ipnet::IpNet;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The other end of a connection.
pub(crate) struct Peer {
    address: IpAddr,
    text: String,
}

impl Peer {
    pub(crate) fn new(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, text: address.to_string() }
    }
}

/// The address of the client: the peer, or what trusted proxies say in `Forwarded` or else in `X-Forwarded-For`.
///
/// Each proxy appends the address from which it got the request. So the last address that is not a proxy's is the client's;
/// what is in front of it, the client may have invented.
pub(crate) fn client_address<'a>(
    peer: &'a Peer,
    headers: &'a HeaderMap,
    trusted_proxies: &[IpNet],
) -> &'a str {
    let is_proxy = |address: IpAddr| trusted_proxies.iter().any(|network| network.contains(&address));
    let mut client = (peer.address, peer.text.as_str());
    let is_standard = headers.contains_key(header::FORWARDED);
    let name = if is_standard { header::FORWARDED } else { X_FORWARDED_FOR };
    for value in headers.get_all(name).iter().rev() {
        for element in value.to_str().unwrap_or_default().rsplit(',') {
            let node = if is_standard { forwarded_for(element) } else { Some(element.trim()) };
            match node.and_then(address_of) {
                Some(found) if is_proxy(client.0) => client = found,
                _ => return client.1,
            }
        }
    }
    client.1
}

/// The value of `for` in an element of `Forwarded`.
fn forwarded_for(element: &str) -> Option<&str> {
    element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then(|| value.trim().trim_matches('"'))
    })
}

/// The address in `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`.
fn address_of(node: &str) -> Option<(IpAddr, &str)> {
    let text = match node.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None if node.parse::<IpAddr>().is_ok() => node,
        None => node.rsplit_once(':')?.0,
    };
    let address = text.parse::<IpAddr>().ok()?;
    Some((address.to_canonical(), text))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn client(peer: &str, headers: &[(&'static str, &'static str)]) -> String {
        let networks = ["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        client_address(&Peer::new(peer.parse().unwrap()), &headers, &networks).to_owned()
    }

    #[test]
    fn a_peer_that_is_no_proxy_is_the_client_whatever_it_says() {
        assert_eq!(client("192.0.2.1", &[]), "192.0.2.1");
        assert_eq!(client("::ffff:192.0.2.1", &[]), "192.0.2.1");
        assert_eq!(client("192.0.2.1", &[("x-forwarded-for", "198.51.100.1")]), "192.0.2.1");
        assert_eq!(client("192.0.2.1", &[("forwarded", "for=198.51.100.1")]), "192.0.2.1");
    }

    #[test]
    fn the_client_of_proxies_is_the_last_address_that_is_not_theirs() {
        for value in
            ["198.51.100.1", "203.0.113.9, 198.51.100.1", "198.51.100.1,10.0.0.2", "198.51.100.1:4711"]
        {
            assert_eq!(client("10.0.0.1", &[("x-forwarded-for", value)]), "198.51.100.1", "{value}");
        }
        let lines = [("x-forwarded-for", "203.0.113.9, 198.51.100.1"), ("x-forwarded-for", "10.0.0.2")];
        assert_eq!(client("fd00::1", &lines), "198.51.100.1");
    }

    #[test]
    fn forwarded_comes_before_x_forwarded_for() {
        for value in [
            "for=198.51.100.1",
            "for=203.0.113.9, For=198.51.100.1;proto=https;by=10.0.0.1",
            r#"proto=http; for="198.51.100.1:4711", for=10.0.0.2"#,
        ] {
            let headers = [("x-forwarded-for", "203.0.113.10"), ("forwarded", value)];
            assert_eq!(client("10.0.0.1", &headers), "198.51.100.1", "{value}");
        }
        assert_eq!(client("10.0.0.1", &[("forwarded", r#"for="[2001:db8::1]:80""#)]), "2001:db8::1");
    }

    #[test]
    fn what_is_not_an_address_is_not_logged() {
        for value in ["", "unknown", "_hidden", "198.51.100.1, evil\"", "1.2.3", "[2001:db8::1", ","] {
            assert_eq!(client("10.0.0.1", &[("x-forwarded-for", value)]), "10.0.0.1", "{value}");
        }
        assert_eq!(client("10.0.0.1", &[("x-forwarded-for", "evil, 10.0.0.2")]), "10.0.0.2");
        assert_eq!(client("10.0.0.1", &[("forwarded", "for=unknown, for=10.0.0.2")]), "10.0.0.2");
    }
}
