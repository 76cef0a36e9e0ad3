//! `agave-loop IF CORE SIZE SECONDS DESTINATION…`: datagrams of SIZE bytes to all destinations, by
//! `agave_xdp::tx_loop`, with a lookup in its router for each, from a thread that fills its
//! channel.

use agave_xdp::device::{NetworkDevice, QueueId};
use agave_xdp::ecn_codepoint::EcnCodepoint;
use agave_xdp::route::Router;
use agave_xdp::tx_loop::{TxLoopBuilder, TxLoopConfigBuilder, TxPacket};
use std::error::Error;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Items that may wait in the channel.
const WAITING: usize = 64;

/// One payload, for all destinations: a shred.
#[derive(Clone)]
struct Shred {
    to: Arc<[SocketAddr]>,
    payload: Arc<[u8]>,
    from: SocketAddrV4,
}

impl TxPacket for Shred {
    type Addrs = Arc<[SocketAddr]>;
    type Payload = Arc<[u8]>;

    fn dst_addrs(&self) -> &Self::Addrs {
        &self.to
    }

    fn payload(&self) -> &Self::Payload {
        &self.payload
    }

    fn src_addr(&self) -> SocketAddrV4 {
        self.from
    }

    fn ecn(&self) -> Option<EcnCodepoint> {
        None
    }

    fn allow_mtu_overflow(&self) -> bool {
        false
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [interface, core, size, seconds, to @ ..] = &args[..] else {
        return Err("agave-loop IF CORE SIZE SECONDS DESTINATION…".into());
    };
    let device = NetworkDevice::new(interface.as_str())?;
    let shred = Shred {
        to: to.iter().map(|to| to.parse()).collect::<Result<Vec<SocketAddr>, _>>()?.into(),
        payload: vec![0; size.parse()?].into(),
        from: SocketAddrV4::new(device.ipv4_addr()?, 8000),
    };
    let config = TxLoopConfigBuilder::new().build_with_src_device(&device);
    let transmit = TxLoopBuilder::new(core.parse()?, QueueId(0), config, &device).build()?;
    let router = Router::new()?;
    let end = Instant::now() + Duration::from_secs_f64(seconds.parse()?);
    let (sender, receiver) = crossbeam_channel::bounded(WAITING);
    let feeder = std::thread::spawn(move || while Instant::now() < end && sender.send(shred.clone()).is_ok() {});
    transmit.run(receiver, drop, |to| match to {
        IpAddr::V4(to) => router.route_v4(*to).ok(),
        IpAddr::V6(_) => None,
    });
    feeder.join().map_err(|_| "the feeder failed")?;
    Ok(())
}
