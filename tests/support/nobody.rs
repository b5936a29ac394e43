//! A port at which nobody is.
//!
//! Must not give it up: a port that is only free is another test's by the time that it is used.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// A port that refuses: bound, so that nobody else gets it, and not listened on.
#[derive(Debug)]
pub(crate) struct Nobody(TcpSocket);

impl Nobody {
    pub(crate) fn new() -> Nobody {
        Nobody::at("127.0.0.1:0".parse().unwrap())
    }

    /// In the place of a listener that has just closed.
    pub(crate) fn at(address: SocketAddr) -> Nobody {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        Nobody(socket)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// Somebody from now on.
    pub(crate) fn listen(self) -> TcpListener {
        self.0.listen(1_024).unwrap()
    }
}
