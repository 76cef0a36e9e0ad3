//! Moves buckets from the busiest lane to the least busy one, one at a time.

use super::table::{BUCKETS, LaneTable, MAX_LANES};
use std::sync::Arc;

/// A lane is overloaded if its load exceeds the mean by more than an eighth.
const SLACK: u64 = 8;

/// Compares the load of the buckets since the last step and moves buckets. Call it about ten times
/// a second, on any thread.
#[derive(Debug)]
pub struct Balancer {
    table: Arc<LaneTable>,
    before: [u64; BUCKETS],
}

impl Balancer {
    /// A balancer for a table.
    pub fn new(table: Arc<LaneTable>) -> Balancer {
        let before = table.loads();
        Balancer { table, before }
    }

    /// Moves at most one bucket from the busiest to the least busy lane if that brings their loads
    /// closer; returns the bucket.
    pub fn step(&mut self) -> Option<usize> {
        let now = self.table.loads();
        let load: [u64; BUCKETS] = std::array::from_fn(|i| now[i].saturating_sub(self.before[i]));
        self.before = now;
        let lanes = self.table.lanes();
        let mut by_lane = [0u64; MAX_LANES];
        for (bucket, load) in load.iter().enumerate() {
            by_lane[usize::from(self.table.lane(bucket)) % MAX_LANES] += load;
        }
        let by_lane = &by_lane[..lanes];
        let (busiest, &most) = by_lane.iter().enumerate().max_by_key(|&(_, load)| *load)?;
        let (idlest, &least) = by_lane.iter().enumerate().min_by_key(|&(_, load)| *load)?;
        let mean = by_lane.iter().sum::<u64>() / lanes as u64;
        if most <= mean + mean / SLACK {
            return None;
        }
        // The largest bucket that does not just exchange the roles of the two lanes.
        let gap = most - least;
        let of_busiest = (0..BUCKETS).filter(|&bucket| usize::from(self.table.lane(bucket)) == busiest);
        let bucket = of_busiest.filter(|&bucket| load[bucket] > 0 && load[bucket] < gap).max_by_key(|&b| load[b])?;
        self.table.set(bucket, idlest as u8).then_some(bucket)
    }
}
