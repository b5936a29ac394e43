//! A name server that gives every name the same addresses, as the cluster's does for a headless Service.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::UdpSocket;
use tokio_util::task::AbortOnDropHandle;

/// Length of a message's head (RFC 1035, 4.1.1).
const HEAD: usize = 12;
/// The type of a question for IPv4 addresses.
const A: [u8; 2] = [0, 1];

/// A running one; ends when dropped.
pub(crate) struct Names {
    pub(crate) address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl Names {
    /// Answers with these from now on.
    pub(crate) async fn start(hosts: Vec<Ipv4Addr>) -> Names {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let mut question = [0; 512];
            loop {
                let (length, asker) = socket.recv_from(&mut question).await.unwrap();
                if let Some(answer) = answer(&question[..length], &hosts) {
                    socket.send_to(&answer, asker).await.ok();
                }
            }
        });
        Names { address, _task: AbortOnDropHandle::new(task) }
    }
}

/// The answer to a message with one question: the addresses, or nothing of another type.
fn answer(message: &[u8], hosts: &[Ipv4Addr]) -> Option<Vec<u8>> {
    let mut end = HEAD;
    while *message.get(end)? > 0 {
        end += usize::from(message[end]) + 1;
    }
    let question = message.get(HEAD..end + 5)?;
    let hosts = if question.ends_with(&[A[0], A[1], 0, 1]) { hosts } else { &[] };
    let n_answers = u16::try_from(hosts.len()).unwrap().to_be_bytes();
    // An answer that is final, without recursion, to one question.
    let mut answer = [&message[..2], &[0x84, 0, 0, 1], &n_answers, &[0; 4], question].concat();
    for host in hosts {
        // The question's name, class IN, for a second.
        answer.extend([0xc0, 0x0c, A[0], A[1], 0, 1, 0, 0, 0, 1, 0, 4]);
        answer.extend(host.octets());
    }
    Some(answer)
}
