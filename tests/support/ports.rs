//! Free ports of loopback, none twice in one run.
//!
//! Must not take them from the kernel's own range: it hands those out to whoever connects, between the
//! look and the use.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the ports that Linux gives to connections (32768 and up).
const FIRST: u16 = 20_000;
const N_PORTS: u16 = 10_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// This many free ports, all different.
pub(crate) fn free<const N: usize>() -> [u16; N] {
    [(); N].map(|()| next())
}

fn next() -> u16 {
    // Two runs at once begin at different places.
    let start = u16::try_from(std::process::id() % u32::from(N_PORTS)).unwrap();
    for _ in 0..N_PORTS {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % N_PORTS;
        let port = FIRST + (start + step) % N_PORTS;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port from {FIRST} on is free");
}
