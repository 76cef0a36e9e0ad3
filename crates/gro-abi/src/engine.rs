//! `towpath_gro_*`: an engine, what it takes and what leaves it.

use crate::abi::{Config, Packet, Sink, Stats};
use crate::buffer::{Buffer, ToProgram, check, read};
use std::ffi::c_int;
use towpath_gro::{Gro, GroConfig, Linear, LinkKind};

/// `-EINVAL`.
pub(crate) const INVALID: c_int = -22;

/// `struct towpath_gro`.
pub struct Engine(Gro<Linear<Buffer>>);

/// The kind of link that a number of the header names.
pub(crate) fn link(number: u8) -> Option<LinkKind> {
    match number {
        0 => Some(LinkKind::Ethernet),
        1 => Some(LinkKind::Ip),
        _ => None,
    }
}

fn defaults() -> Config {
    let GroConfig { flows, max_size, max_packets, .. } = GroConfig::default();
    Config { flows: flows as u32, max_size, max_packets, link: 0, udp: 1, auto_bypass: 0 }
}

/// The engine's configuration; `None` if a number is outside of its range.
fn configuration(config: &Config) -> Option<GroConfig> {
    let fits = (1..=32768).contains(&config.flows) && (1280..=65535).contains(&config.max_size);
    let gro = GroConfig::default()
        .link(link(config.link).filter(|_| fits && config.max_packets > 0)?)
        .flows(config.flows as usize)
        .max_size(config.max_size)
        .max_packets(config.max_packets)
        .udp(config.udp != 0)
        .auto(config.auto_bypass != 0);
    // A virtio-net header does not describe super-packets in tunnels.
    Some(gro.tunnels(false))
}

/// Sets the defaults.
///
/// # Safety
/// `config` is null, or points to room for a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_gro_config_init(config: *mut Config) {
    // SAFETY: the caller's promise.
    if let Some(config) = unsafe { config.as_mut() } {
        *config = defaults();
    }
}

/// Makes an engine.
///
/// # Safety
/// `config` is null, or points to a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_gro_new(config: *const Config) -> *mut Engine {
    // SAFETY: the caller's promise.
    let config = unsafe { config.as_ref() }.copied().unwrap_or_else(defaults);
    let gro = configuration(&config).map(|config| Box::into_raw(Box::new(Engine(Gro::new(config)))));
    gro.unwrap_or(std::ptr::null_mut())
}

/// Ends an engine.
///
/// # Safety
/// `gro` is null, or an engine that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_gro_free(gro: *mut Engine) {
    if !gro.is_null() {
        // SAFETY: the caller's promise: it is the box of `towpath_gro_new`.
        drop(unsafe { Box::from_raw(gro) });
    }
}

/// The engine and the sink of a call; `None` if one is missing.
///
/// # Safety
/// Both are null, or what the header says, and nothing else uses the engine during the call.
unsafe fn parts<'a>(gro: *mut Engine, sink: *const Sink) -> Option<(&'a mut Gro<Linear<Buffer>>, ToProgram)> {
    // SAFETY: the caller's promise.
    unsafe { Some((&mut gro.as_mut()?.0, ToProgram::new(sink.as_ref()?)?)) }
}

/// The packets of a call, all of which may be read; `None` if one may not.
///
/// # Safety
/// `packets` is null, or points to `count` packets.
unsafe fn burst<'a>(packets: *const Packet, count: usize) -> Option<&'a [Packet]> {
    if count == 0 {
        return Some(&[]);
    }
    if packets.is_null() || count > isize::MAX as usize / size_of::<Packet>() {
        return None;
    }
    // SAFETY: the caller's promise.
    let packets = unsafe { std::slice::from_raw_parts(packets, count) };
    packets.iter().all(check).then_some(packets)
}

/// Takes packets.
///
/// # Safety
/// The pointers are null or what the header says. The packets' buffers are memory that nothing else
/// uses until they come back, each in one packet. The sink's functions do not call the engine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_gro_push(
    gro: *mut Engine,
    packets: *const Packet,
    count: usize,
    now: u64,
    sink: *const Sink,
) -> c_int {
    // SAFETY: the caller's promise.
    let (parts, burst) = unsafe { (parts(gro, sink), burst(packets, count)) };
    let (Some((gro, mut sink)), Some(burst)) = (parts, burst) else { return INVALID };
    // SAFETY: the caller's promise for the buffers.
    gro.push_batch(burst.iter().map(|packet| unsafe { read(packet) }), now, &mut sink);
    0
}

/// Takes packets, and flushes everything.
///
/// # Safety
/// As for [`towpath_gro_push`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_gro_push_and_flush(
    gro: *mut Engine,
    packets: *const Packet,
    count: usize,
    sink: *const Sink,
) -> c_int {
    // SAFETY: the caller's promise.
    let (parts, burst) = unsafe { (parts(gro, sink), burst(packets, count)) };
    let (Some((gro, mut sink)), Some(burst)) = (parts, burst) else { return INVALID };
    // SAFETY: the caller's promise for the buffers.
    gro.push_and_flush(burst.iter().map(|packet| unsafe { read(packet) }), &mut sink);
    0
}

/// Flushes what was first pushed before a time.
///
/// # Safety
/// As for [`towpath_gro_push`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_gro_flush(gro: *mut Engine, older_than: u64, sink: *const Sink) -> c_int {
    // SAFETY: the caller's promise.
    let Some((gro, mut sink)) = (unsafe { parts(gro, sink) }) else { return INVALID };
    gro.flush(older_than, &mut sink);
    0
}

/// Flushes everything.
///
/// # Safety
/// As for [`towpath_gro_push`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_gro_flush_all(gro: *mut Engine, sink: *const Sink) -> c_int {
    // SAFETY: the caller's promise.
    let Some((gro, mut sink)) = (unsafe { parts(gro, sink) }) else { return INVALID };
    gro.flush_all(&mut sink);
    0
}

/// The number of flows that are held.
///
/// # Safety
/// `gro` is null, or an engine that nothing else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_gro_held(gro: *const Engine) -> usize {
    // SAFETY: the caller's promise.
    unsafe { gro.as_ref() }.map_or(0, |gro| gro.0.held())
}

/// What the engine has done.
///
/// # Safety
/// As for [`towpath_gro_held`]; `stats` is null, or points to room for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn towpath_gro_stats(gro: *const Engine, stats: *mut Stats) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(gro), Some(stats)) = (unsafe { (gro.as_ref(), stats.as_mut()) }) else { return INVALID };
    let counted = gro.0.stats();
    *stats = Stats { packets: counted.packets, merged: counted.merged, bypassed: counted.bypassed };
    0
}
