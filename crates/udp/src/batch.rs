//! A socket and its two halves.

use crate::{UdpConfig, UdpInfo, UdpReceiver, UdpSender};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use towpath_sys::udp::options::{self, Buffer};

/// A UDP socket that sends and receives many datagrams with one call.
///
/// The halves are independent: they may move to two threads or tasks. Both have the same
/// descriptor, so one registration with `epoll(7)` (tokio's `AsyncFd`) serves both directions.
/// Calls block if the socket does (`UdpSocket::set_nonblocking`).
#[derive(Debug)]
#[non_exhaustive]
pub struct UdpBatch {
    /// The half that sends.
    pub sender: UdpSender,
    /// The half that receives.
    pub receiver: UdpReceiver,
    info: UdpInfo,
}

/// Why a socket can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No socket can be bound to the address.
    #[error("{address}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The error of `socket(2)` or `bind(2)`.
        #[source]
        error: io::Error,
    },
    /// The descriptor is no UDP socket.
    #[error("the descriptor is no UDP socket of IPv4 or IPv6: pass one of socket(AF_INET or AF_INET6, SOCK_DGRAM)")]
    NotUdp,
    /// An option of the socket can't be set or read.
    #[error("{option}: {error}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// The error of `setsockopt(2)` or `getsockopt(2)`.
        #[source]
        error: io::Error,
    },
}

impl UdpBatch {
    /// Binds a new socket; `[::]:PORT` carries IPv6 and, unless `net.ipv6.bindv6only` is set, IPv4.
    ///
    /// # Errors
    /// [`OpenError::Bind`], [`OpenError::Option`].
    pub fn bind(address: SocketAddr, config: &UdpConfig) -> Result<UdpBatch, OpenError> {
        let socket = UdpSocket::bind(address).map_err(|error| OpenError::Bind { address, error })?;
        UdpBatch::new(socket, config)
    }

    /// Takes over a socket. One that is connected sends to its peer without an address; it must be
    /// connected before.
    ///
    /// # Errors
    /// [`OpenError::NotUdp`], [`OpenError::Option`].
    pub fn new(socket: impl Into<OwnedFd>, config: &UdpConfig) -> Result<UdpBatch, OpenError> {
        let socket = socket.into();
        let fd = socket.as_fd();
        let failed = |option| move |error| OpenError::Option { option, error };
        let v6 = options::is_v6(fd).ok().flatten().ok_or(OpenError::NotUdp)?;
        options::report_path(fd, v6).map_err(failed("IP_PKTINFO, IP_RECVTOS"))?;
        let info = UdpInfo {
            segmentation: config.segmentation && options::has_segmentation(fd),
            gro: options::set_gro(fd, config.gro).is_ok() && config.gro,
            receive_buffer: options::reserve(fd, Buffer::Receive, config.receive_buffer)
                .map_err(failed("SO_RCVBUF"))?,
            send_buffer: options::reserve(fd, Buffer::Send, config.send_buffer).map_err(failed("SO_SNDBUF"))?,
            v6,
            v4: !v6 || !options::is_v6_only(fd).map_err(failed("IPV6_V6ONLY"))?,
        };
        let socket = Arc::new(UdpSocket::from(socket));
        let sender = UdpSender::new(socket.clone(), config, &info);
        let receiver = UdpReceiver::new(socket, config).map_err(failed("SO_MEMINFO"))?;
        Ok(UdpBatch { sender, receiver, info })
    }

    /// What the kernel granted.
    pub fn info(&self) -> UdpInfo {
        self.info
    }

    /// The socket, for its address, mode and other options.
    pub fn socket(&self) -> &Arc<UdpSocket> {
        self.sender.socket()
    }

    /// The two halves, for two threads or tasks.
    pub fn split(self) -> (UdpSender, UdpReceiver) {
        (self.sender, self.receiver)
    }
}

impl AsFd for UdpBatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

impl AsRawFd for UdpBatch {
    fn as_raw_fd(&self) -> RawFd {
        self.socket().as_raw_fd()
    }
}
