//! Free ports of loopback.
//!
//! Must not keep them: another process may take one before it is used, which has not been seen since
//! the kernel hands out others first.

use std::net::TcpListener;

/// This many free ports, all different.
pub(crate) fn free<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
