//! The line of the log that the replica takes work.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tracing::info;

use crate::health::Health;
use crate::lifecycle::Shutdown;

/// Says once that the replica takes work, and where its console is.
pub(super) async fn tell(health: Health, routes: usize, console: String, shutdown: Shutdown) {
    tokio::select! {
        () = health.until_ready() => info!(routes, console, "ready"),
        () = shutdown.draining() => {}
    }
}

/// Where a browser on this machine finds the console.
pub(super) fn console_url(listens: SocketAddr, is_tls: bool) -> String {
    let scheme = if is_tls { "https" } else { "http" };
    let mut address = listens;
    if address.ip().is_unspecified() {
        let loopback = match address.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        address.set_ip(loopback);
    }
    format!("{scheme}://{address}/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_on_all_addresses_is_found_on_this_machine() {
        let url = |listens: &str, is_tls| console_url(listens.parse().expect("an address"), is_tls);
        assert_eq!(url("127.0.0.1:8080", false), "http://127.0.0.1:8080/");
        assert_eq!(url("0.0.0.0:8443", true), "https://127.0.0.1:8443/");
        assert_eq!(url("[::]:1", false), "http://[::1]:1/");
        assert_eq!(url("10.1.2.3:1", false), "http://10.1.2.3:1/");
    }
}
