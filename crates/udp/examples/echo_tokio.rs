//! An echo server and its client as two tasks on tokio: one registration of the descriptor serves
//! both directions.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use towpath_udp::{Path, UdpBatch, UdpConfig, UdpReceiver, UdpSender};

type Readiness = AsyncFd<Arc<UdpSocket>>;

const DATAGRAMS: usize = 10_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tokio::runtime::Builder::new_current_thread().enable_io().build()?.block_on(run())
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let config = UdpConfig::default();
    let server = UdpBatch::bind("127.0.0.1:0".parse()?, &config)?;
    let path = Path::to(server.socket().local_addr()?);
    let server = tokio::spawn(echo(server));

    let client = UdpBatch::bind("127.0.0.1:0".parse()?, &config)?;
    client.socket().set_nonblocking(true)?;
    let ready = register(client.socket())?;
    let (mut tx, mut rx) = client.split();
    let mut answers = 0;
    while answers < DATAGRAMS {
        for _ in 0..100 {
            tx.push(&path, &[1; 1200])?;
        }
        send(&ready, &mut tx).await?;
        let asked = answers + 100;
        while answers < asked {
            answers += receive(&ready, &mut rx).await?;
        }
    }
    println!("{answers} answers: {:?}, {:?}", tx.stats(), rx.stats());
    server.abort();
    Ok(())
}

async fn echo(batch: UdpBatch) -> io::Result<()> {
    batch.socket().set_nonblocking(true)?;
    let ready = register(batch.socket())?;
    let (mut tx, mut rx) = batch.split();
    loop {
        receive(&ready, &mut rx).await?;
        for message in rx.messages() {
            let back = message.path.reply();
            for datagram in message.iter() {
                // A full queue has no room for an answer: UDP may lose it.
                let _ = tx.push(&back, datagram);
            }
        }
        send(&ready, &mut tx).await?;
    }
}

/// Both directions of a socket that does not block.
fn register(socket: &Arc<UdpSocket>) -> io::Result<Readiness> {
    // SAFETY: the descriptor is open and the same for as long as the registration owns the socket.
    Ok(unsafe { AsyncFd::register(socket.clone()) }?)
}

async fn receive(ready: &Readiness, rx: &mut UdpReceiver) -> io::Result<usize> {
    ready.async_io(Interest::READABLE, |_| rx.receive()).await
}

async fn send(ready: &Readiness, tx: &mut UdpSender) -> io::Result<()> {
    while tx.pending() > 0 {
        ready.async_io(Interest::WRITABLE, |_| tx.flush()).await?;
    }
    Ok(())
}
