//! A web server with an address of its own, which needs no root: `GET /N` returns N bytes.
//!
//! ```sh
//! sudo towpath serve '/run/towpath.sock?mode=666' 'tap:tp0?addr=10.0.0.1/24' &
//! cargo run --release -p towpath-smoltcp --example http -- /run/towpath.sock 10.0.0.2/24
//! # and, elsewhere:
//! curl http://10.0.0.2:8080/1000000 | wc -c
//! ```
//!
//! With a tap in place of the socket (`'tap:tp0?addr=10.0.0.1/24'`, as root), the datapath is in
//! this process.

mod server;

use std::error::Error;
use towpath_ports::tun;
use towpath_smoltcp::{Config, Device, PortDevice};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "/run/towpath.sock".to_owned());
    let address = args.next().unwrap_or_else(|| "10.0.0.2/24".to_owned());
    let address = address.parse().map_err(|()| "an address with its prefix, such as 10.0.0.2/24")?;
    if path.starts_with("tap:") {
        let mut device = PortDevice::start(tun::open(tun::Config::from_uri(&path.parse()?)?)?)?;
        return Ok(server::serve(&mut device, address, PortDevice::wait)?);
    }
    let mut device = Device::connect(path, &Config::default())?;
    Ok(server::serve(&mut device, address, Device::wait)?)
}
