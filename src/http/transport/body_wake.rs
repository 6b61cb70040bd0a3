//! Spares a connection the needless wake that hyper sends it when a handler takes the end of a body.
//!
//! The wake asks for more of the body. hyper sends it even if nothing is left, while the connection is being polled, so
//! the runtime queues the connection again and wakes a second thread for it: more work than the rest of a small request.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};

thread_local! {
    /// While this thread holds wakes back: whether one came.
    static HELD_BACK: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Wakes the task of a connection, unless the calling thread holds wakes back.
struct ConnectionWaker {
    task: Waker,
}

impl Wake for ConnectionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match HELD_BACK.get() {
            None => self.task.wake_by_ref(),
            Some(_) => HELD_BACK.set(Some(true)),
        }
    }
}

/// Holds the wakes of this thread back until it is dropped, even by a panic.
struct HoldBack;

impl HoldBack {
    fn start() -> Self {
        HELD_BACK.set(Some(false));
        Self
    }
}

impl Drop for HoldBack {
    fn drop(&mut self) {
        HELD_BACK.set(None);
    }
}

/// Runs a connection, so that [`poll_body`] can hold its wakes back.
pub(super) async fn run_connection<F: Future>(connection: F) -> F::Output {
    let mut connection = pin!(connection);
    let mut current: Option<(Arc<ConnectionWaker>, Waker)> = None;
    poll_fn(move |cx| {
        let task = cx.waker();
        let (_, waker) = match &mut current {
            Some(current) if current.0.task.will_wake(task) => current,
            current => {
                let connection = Arc::new(ConnectionWaker { task: task.clone() });
                current.insert((connection.clone(), connection.into()))
            }
        };
        connection.as_mut().poll(&mut Context::from_waker(waker))
    })
    .await
}

/// The next frame of a body. Its connection is woken only if more is to come.
pub(crate) fn poll_body(
    body: &mut Incoming,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
    let hold_back = HoldBack::start();
    let frame = Pin::new(&mut *body).poll_frame(cx);
    let woken = HELD_BACK.get() == Some(true);
    drop(hold_back);
    if woken && !body.is_end_stream() {
        cx.waker().wake_by_ref();
    }
    frame
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Task {
        wakes: AtomicUsize,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.wakes.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_wakes_of_the_thread_that_holds_them_back_are_lost() {
        let task = Arc::new(Task::default());
        let mut connection = pin!(run_connection(poll_fn(|cx| {
            let waker = cx.waker();
            let hold_back = HoldBack::start();
            waker.wake_by_ref();
            assert_eq!(HELD_BACK.get(), Some(true));
            std::thread::scope(|threads| threads.spawn(|| waker.wake_by_ref()).join()).expect("no panic");
            drop(hold_back);
            waker.wake_by_ref();
            Poll::<()>::Pending
        })));
        let waker = Waker::from(task.clone());
        assert!(connection.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(task.wakes.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_panic_does_not_hold_wakes_back_for_ever() {
        let panicked = std::panic::catch_unwind(|| {
            let _hold_back = HoldBack::start();
            panic!("while a body is polled");
        });
        assert!(panicked.is_err());
        assert_eq!(HELD_BACK.get(), None);
    }
}
