//! A packet pool in the device's reach, for a bus whose device can't reach the datapath's pool.

use towpath_bus::{Dma, Domain, MapError};
use towpath_packet::{Pool, PoolConfig, PoolError};

/// Why a port has no memory that the device reaches.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Makes a pool in memory that the bus allocates for the device, and maps it.
pub(crate) fn device_pool<D: Dma>(domain: &Domain<D>, config: PoolConfig) -> Result<Pool, StartError> {
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
