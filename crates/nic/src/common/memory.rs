//! Packet memory in the device's reach: the datapath's pool, or one of the port's own.

use super::error::StartError;
use towpath_bus::{Dma, DmaMapper, Domain, MapError};
use towpath_packet::{Cache, Direction, Floors, Pool, PoolConfig};

/// The memory of a port's packets.
pub(crate) struct DeviceMemory<D: Dma> {
    pub(crate) domain: Domain<D>,
    pool: Pool,
    own: Option<Pool>,
}

impl<D: Dma> DeviceMemory<D> {
    /// Registers the datapath's pool. If the device can't reach it, the port has a pool of
    /// `capacity` buffers of its own, `tx` of which are not for reception.
    pub(crate) fn new(
        domain: Domain<D>,
        pool: Pool,
        capacity: usize,
        tx: usize,
    ) -> Result<DeviceMemory<D>, StartError> {
        if let Some(region) = pool.region() {
            // SAFETY: the drivers post only buffers in flight, and complete those that the device
            // wrote back, or after it was stopped.
            match unsafe { domain.register(region) } {
                Ok(()) => return Ok(DeviceMemory { domain, pool, own: None }),
                Err(MapError::Foreign) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let config = PoolConfig::default()
            .capacity(capacity)
            .chunk(pool.chunk())
            .headroom(pool.headroom())
            .floors(Floors { rx: 0, tx });
        let own = Some(device_pool(&domain, config)?);
        Ok(DeviceMemory { domain, pool, own })
    }

    /// The pool of the device's buffers.
    pub(crate) fn buffers(&self) -> &Pool {
        self.own.as_ref().unwrap_or(&self.pool)
    }

    /// Bytes of a buffer behind its headroom.
    pub(crate) fn room(&self) -> usize {
        self.buffers().chunk() - self.buffers().headroom()
    }

    /// The datapath's pool, if the device can't reach it.
    pub(crate) fn out_of_reach(&self) -> Option<&Pool> {
        self.own.as_ref().map(|_| &self.pool)
    }

    /// A cache of the device's buffers.
    pub(crate) fn cache(&self, direction: Direction) -> Result<Cache, StartError> {
        Ok(self.buffers().cache(direction)?)
    }

    /// A cache for copies of received frames, if they come from another pool than the device's
    /// buffers.
    pub(crate) fn copy_cache(&self) -> Result<Option<Cache>, StartError> {
        Ok(self.out_of_reach().map(|pool| pool.cache(Direction::Rx)).transpose()?)
    }

    /// A mapper for so many buffers at a time, of one chunk or `bytes`, whichever is longer.
    pub(crate) fn mapper(&self, buffers: u32, bytes: usize) -> Result<DmaMapper<D>, StartError> {
        Ok(DmaMapper::new(&self.domain, buffers, self.buffers().chunk().max(bytes))?)
    }

    /// The domain, and the port's own pool.
    pub(crate) fn into_parts(self) -> (Domain<D>, Option<Pool>) {
        (self.domain, self.own)
    }
}

/// Makes a pool in memory that the bus allocates for the device, and maps it.
fn device_pool<D: Dma>(domain: &Domain<D>, config: PoolConfig) -> Result<Pool, StartError> {
    let region = domain.dma().alloc(config.capacity.saturating_mul(config.chunk))?;
    // SAFETY: the bus has just allocated the region for this pool, so that nothing else in this
    // process has its address. The device writes only to chunks that are in flight to it.
    let pool = unsafe { Pool::in_region(config, region) }?;
    if let Some(region) = pool.region() {
        // SAFETY: as above; the drivers complete a buffer when the device wrote it back, or after
        // it was stopped.
        unsafe { domain.register(region) }?;
    }
    Ok(pool)
}
