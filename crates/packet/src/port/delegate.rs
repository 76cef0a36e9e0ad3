//! Delegation: a queue that passes every call to the queue inside it.
//!
//! The macros name every method of the traits, and [`missing_trait_methods`] denies an
//! implementation that leaves one out. A method that is new in a trait therefore never falls back
//! to its default in a wrapper without notice.
//!
//! [`missing_trait_methods`]:
//! https://rust-lang.github.io/rust-clippy/master/index.html#missing_trait_methods

use super::{RxQueue, TxQueue};

/// Implements [`RxQueue`] by passing every method to the queue inside, one for each pattern
/// of `self`.
///
/// ```
/// use towpath_packet::delegate_rx_queue;
/// use towpath_packet::port::RxQueue;
///
/// struct Named<R> {
///     name: String,
///     queue: R,
/// }
/// delegate_rx_queue!(impl[R: RxQueue] for Named<R> { Named { queue, .. } => queue });
///
/// enum Either<A, B> {
///     A(A),
///     B(B),
/// }
/// delegate_rx_queue!(impl[A: RxQueue, B: RxQueue] for Either<A, B> {
///     Either::A(queue) => queue,
///     Either::B(queue) => queue,
/// });
/// ```
#[macro_export]
macro_rules! delegate_rx_queue {
    (impl[$($generics:tt)*] for $type:ty { $($pattern:pat => $queue:expr),+ $(,)? }) => {
        #[deny(clippy::missing_trait_methods)]
        impl<$($generics)*> $crate::port::RxQueue for $type {
            #[inline]
            fn rx(&mut self, out: &mut $crate::Batch) -> usize {
                match self { $($pattern => $queue.rx(out),)+ }
            }
            #[inline]
            fn refill(&mut self) -> usize {
                match self { $($pattern => $queue.refill(),)+ }
            }
            fn set_rx_offloads(&mut self, accept: $crate::Offloads) {
                match self { $($pattern => $queue.set_rx_offloads(accept),)+ }
            }
            fn set_tx_layout(&mut self, egress: $crate::port::TxLayout) {
                match self { $($pattern => $queue.set_tx_layout(egress),)+ }
            }
            #[inline]
            fn order_barrier(&mut self) -> Option<&mut dyn $crate::port::RxBarrier> {
                match self { $($pattern => $queue.order_barrier(),)+ }
            }
            fn memory(&self) -> $crate::port::RxMemory {
                match self { $($pattern => $queue.memory(),)+ }
            }
            fn state(&self) -> $crate::port::State {
                match self { $($pattern => $queue.state(),)+ }
            }
            fn wake(&self) -> $crate::port::Wake {
                match self { $($pattern => $queue.wake(),)+ }
            }
            fn counters(&self) -> &::std::sync::Arc<$crate::Counters> {
                match self { $($pattern => $queue.counters(),)+ }
            }
        }
    };
}

/// Implements [`TxQueue`] by passing every method to the queue inside, as
/// [`delegate_rx_queue!`](crate::delegate_rx_queue) does.
#[macro_export]
macro_rules! delegate_tx_queue {
    (impl[$($generics:tt)*] for $type:ty { $($pattern:pat => $queue:expr),+ $(,)? }) => {
        #[deny(clippy::missing_trait_methods)]
        impl<$($generics)*> $crate::port::TxQueue for $type {
            #[inline]
            fn tx(&mut self, batch: &mut $crate::Batch) -> usize {
                match self { $($pattern => $queue.tx(batch),)+ }
            }
            #[inline]
            fn reclaim(&mut self) -> usize {
                match self { $($pattern => $queue.reclaim(),)+ }
            }
            fn close(&mut self) -> Result<(), ::std::borrow::Cow<'static, str>> {
                match self { $($pattern => $queue.close(),)+ }
            }
            #[inline]
            fn kick(&mut self) {
                match self { $($pattern => $queue.kick(),)+ }
            }
            #[inline]
            fn offloads(&self) -> $crate::Offloads {
                match self { $($pattern => $queue.offloads(),)+ }
            }
            fn max_offloads(&self) -> $crate::Offloads {
                match self { $($pattern => $queue.max_offloads(),)+ }
            }
            #[inline]
            fn pending(&self) -> usize {
                match self { $($pattern => $queue.pending(),)+ }
            }
            #[inline]
            fn order_barrier(&mut self) -> Option<&mut dyn $crate::port::TxBarrier> {
                match self { $($pattern => $queue.order_barrier(),)+ }
            }
            fn state(&self) -> $crate::port::State {
                match self { $($pattern => $queue.state(),)+ }
            }
            fn wake(&self) -> $crate::port::Wake {
                match self { $($pattern => $queue.wake(),)+ }
            }
            fn counters(&self) -> &::std::sync::Arc<$crate::Counters> {
                match self { $($pattern => $queue.counters(),)+ }
            }
        }
    };
}

delegate_rx_queue!(impl[R: RxQueue + ?Sized] for Box<R> { queue => **queue });
delegate_tx_queue!(impl[T: TxQueue + ?Sized] for Box<T> { queue => **queue });

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::port::{
        Edge, Info, Layer, Needs, Port, PortControl, PortError, Queues, RxBarrier, RxMemory, RxQueue, Start, Started,
        State, TxBarrier, TxLayout, TxQueue, Wake,
    };
    use crate::{Backing, Batch, Counters, Offloads, Pool, PoolConfig};
    use std::borrow::Cow;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;

    /// Notes the calls that arrive.
    #[derive(Default)]
    struct Recorder {
        calls: RefCell<Vec<&'static str>>,
        counters: Arc<Counters>,
    }

    impl Recorder {
        fn note<T: Default>(&self, call: &'static str) -> T {
            self.calls.borrow_mut().push(call);
            T::default()
        }
    }

    #[deny(clippy::missing_trait_methods)]
    impl RxQueue for Recorder {
        fn rx(&mut self, _: &mut Batch) -> usize {
            self.note("rx")
        }
        fn refill(&mut self) -> usize {
            self.note("refill")
        }
        fn set_rx_offloads(&mut self, _: Offloads) {
            self.note("set_rx_offloads")
        }
        fn set_tx_layout(&mut self, _: TxLayout) {
            self.note("set_tx_layout")
        }
        fn order_barrier(&mut self) -> Option<&mut dyn RxBarrier> {
            self.note::<()>("order_barrier");
            None
        }
        fn memory(&self) -> RxMemory {
            self.note("memory")
        }
        fn state(&self) -> State {
            self.note::<()>("state");
            State::Done
        }
        fn wake(&self) -> Wake {
            self.note::<()>("wake");
            Wake::Never
        }
        fn counters(&self) -> &Arc<Counters> {
            self.note::<()>("counters");
            &self.counters
        }
    }

    #[deny(clippy::missing_trait_methods)]
    impl TxQueue for Recorder {
        fn tx(&mut self, _: &mut Batch) -> usize {
            self.note("tx")
        }
        fn reclaim(&mut self) -> usize {
            self.note("reclaim")
        }
        fn close(&mut self) -> Result<(), Cow<'static, str>> {
            self.note::<()>("close");
            Err("the last write failed".into())
        }
        fn kick(&mut self) {
            self.note("kick")
        }
        fn offloads(&self) -> Offloads {
            self.note::<()>("offloads");
            Offloads::ALL
        }
        fn max_offloads(&self) -> Offloads {
            self.note::<()>("max_offloads");
            Offloads::ALL
        }
        fn pending(&self) -> usize {
            self.note("pending")
        }
        fn order_barrier(&mut self) -> Option<&mut dyn TxBarrier> {
            self.note::<()>("order_barrier");
            None
        }
        fn state(&self) -> State {
            self.note::<()>("state");
            State::Done
        }
        fn wake(&self) -> Wake {
            self.note::<()>("wake");
            Wake::Never
        }
        fn counters(&self) -> &Arc<Counters> {
            self.note::<()>("counters");
            &self.counters
        }
    }

    /// A port that notes the calls that arrive, and what its queues are.
    struct RecorderPort {
        info: Info,
        calls: Rc<RefCell<Vec<&'static str>>>,
    }

    impl RecorderPort {
        fn note(&self, call: &'static str) {
            self.calls.borrow_mut().push(call);
        }
    }

    #[deny(clippy::missing_trait_methods)]
    impl Port for RecorderPort {
        type Rx = Recorder;
        type Tx = Recorder;

        fn info(&self) -> &Info {
            self.note("info");
            &self.info
        }
        fn control(&self) -> Option<Arc<dyn PortControl>> {
            self.note("control");
            None
        }
        fn edge(&self) -> Option<Arc<dyn Edge>> {
            self.note("edge");
            None
        }
        fn needs(&self) -> Needs {
            self.note("needs");
            Needs::none()
        }
        fn start(self, _: Start) -> Result<Queues<Recorder, Recorder>, PortError> {
            self.note("start");
            Ok(Queues { rx: vec![Recorder::default()], tx: vec![Recorder::default()] })
        }
        fn start_with_info(self, _: Start) -> Result<Started<RecorderPort>, PortError> {
            self.note("start_with_info");
            Ok((self.info, Queues { rx: vec![Recorder::default()], tx: vec![Recorder::default()] }))
        }
    }

    enum Outer<Q> {
        Boxed(Box<Q>),
        Plain { queue: Q },
    }
    delegate_rx_queue!(impl[Q: RxQueue] for Outer<Q> { Outer::Boxed(queue) => queue, Outer::Plain { queue } => queue });
    delegate_tx_queue!(impl[Q: TxQueue] for Outer<Q> { Outer::Boxed(queue) => queue, Outer::Plain { queue } => queue });

    fn calls(outer: Outer<Recorder>) -> Vec<&'static str> {
        match outer {
            Outer::Boxed(queue) => queue.calls.take(),
            Outer::Plain { queue } => queue.calls.take(),
        }
    }

    fn outers() -> [Outer<Recorder>; 2] {
        [Outer::Boxed(Box::default()), Outer::Plain { queue: Recorder::default() }]
    }

    #[test]
    fn every_call_to_a_boxed_port_arrives_at_the_port_inside() {
        let pool = Pool::new(PoolConfig::default().capacity(32).backing(Backing::Anonymous)).unwrap();
        let start = Start { pool, queues: 1, accept: Offloads::NONE };
        let calls = Rc::default();
        let port =
            || Box::new(RecorderPort { info: Info::new("recorder", Layer::Any, 1500), calls: Rc::clone(&calls) });
        let whole = port();
        Port::info(&whole);
        assert!(Port::control(&whole).is_none() && Port::edge(&whole).is_none());
        Port::needs(&whole);
        assert!(Port::start(whole, start.clone()).is_ok_and(|queues| queues.rx.len() == 1 && queues.tx.len() == 1));
        let started = Port::start_with_info(port(), start);
        assert!(started.is_ok_and(|(info, queues)| info.name == "recorder" && queues.rx.len() == 1));
        assert_eq!(*calls.borrow(), ["info", "control", "edge", "needs", "start", "start_with_info"]);
    }

    #[test]
    fn every_call_to_a_delegating_receive_queue_arrives_at_the_queue_inside() {
        for mut outer in outers() {
            let queue: &mut dyn RxQueue = &mut outer;
            queue.rx(&mut Batch::new());
            queue.refill();
            queue.set_rx_offloads(Offloads::ALL);
            queue.set_tx_layout(TxLayout::default());
            queue.order_barrier();
            queue.memory();
            assert_eq!((queue.state(), queue.wake()), (State::Done, Wake::Never));
            queue.counters();
            let all = ["rx", "refill", "set_rx_offloads", "set_tx_layout", "order_barrier"];
            assert_eq!(calls(outer), [&all[..], &["memory", "state", "wake", "counters"]].concat());
        }
    }

    #[test]
    fn every_call_to_a_delegating_transmit_queue_arrives_at_the_queue_inside() {
        for mut outer in outers() {
            let queue: &mut dyn TxQueue = &mut outer;
            queue.tx(&mut Batch::new());
            queue.reclaim();
            assert_eq!(queue.close(), Err("the last write failed".into()));
            queue.kick();
            assert_eq!((queue.offloads(), queue.max_offloads()), (Offloads::ALL, Offloads::ALL));
            queue.pending();
            queue.order_barrier();
            assert_eq!((queue.state(), queue.wake()), (State::Done, Wake::Never));
            queue.counters();
            let all = ["tx", "reclaim", "close", "kick", "offloads", "max_offloads"];
            assert_eq!(calls(outer), [&all[..], &["pending", "order_barrier", "state", "wake", "counters"]].concat());
        }
    }
}
