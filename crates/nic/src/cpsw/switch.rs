//! Sets the switch up: the host port, and the address lookup engine out of the way.
//!
//! Every frame that comes in at a MAC port is for the host, whatever its addresses and tag, and none goes from one MAC port to another:
//! the lookup engine (ALE) is bypassed, and MAC ports learn nothing. In the other direction frames are directed. Should the
//! bypass be taken away, MAC-only mode still keeps the ports apart.

use super::config::Config;
use super::regs::{ale, switch};
use towpath_bus::Mmio;

/// From reset, or from whatever was there before: host port first, then the lookup engine, whose table is emptied. Frames are let in
/// last.
pub(super) fn set_up<M: Mmio>(bar: &M, config: &Config) {
    switch::CONTROL.write(bar, switch::CONTROL_ON);
    switch::STAT_PORT_EN.write(bar, (1 << (config.ports + 1)) - 1);
    switch::P0_CONTROL.write(bar, switch::RX_CHECKSUM_EN);
    switch::P0_PRI_CTL.write(bar, 0);
    switch::P0_RX_PRI_MAP.write(bar, switch::PRIORITIES);
    switch::P0_RX_MAXLEN.write(bar, config.max_len);
    switch::P0_FLOW_ID_OFFSET.write(bar, u32::from(config.soc.rx_flow));
    ale::CONTROL.write(bar, ale::ENABLE | ale::CLEAR);
    ale::CONTROL.write(bar, ale::ENABLE | ale::BYPASS);
    // What no classifier claims goes to the first flow.
    ale::DEFAULT_THREAD.write(bar, ale::DEFAULT_THREAD_ENABLE);
    ale::PORT_CONTROL.write(bar, ale::FORWARD);
    for port in 1..=u32::from(config.ports) {
        let control = ale::FORWARD | ale::NO_LEARN | ale::NO_SOURCE_UPDATE | ale::MAC_ONLY | ale::MAC_ONLY_COPY_ALL;
        ale::PORT_CONTROL.nth(port, 4).write(bar, control);
    }
}
