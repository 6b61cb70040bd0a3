//! Steers the order in which transactions of the service and of others run, from outside: by locks, by triggers in the test's own
//! database, and by signals to a node.

use std::time::Duration;

use tokio::task::JoinHandle;

use super::postgres::TestDatabase;
use super::program::ServeProcess;
use super::wait::{eventually, poll};
use super::{Answer, Client};

/// The first key of the advisory lock of a pet: 'pets' in ASCII.
const LOCK_PET: &str = "SELECT pg_advisory_xact_lock(1885697139, hashint8($1))";

/// A transaction of somebody else, in psql for example.
pub(crate) struct Holder {
    pub(crate) session: tokio_postgres::Client,
    pub(crate) pid: i32,
    watch: tokio_postgres::Client,
}

impl Holder {
    /// Starts a transaction and runs these statements in it.
    pub(crate) async fn begin(database: &TestDatabase, statements: &str) -> Self {
        let (session, watch) = (database.connect().await, database.connect().await);
        let pid = session.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        session.batch_execute(&format!("BEGIN; {statements}")).await.unwrap();
        Self { session, pid, watch }
    }

    /// Starts a transaction that holds the advisory lock of a pet, as a node that changes the pet does.
    pub(crate) async fn of_pet(database: &TestDatabase, pet: i64) -> Self {
        let holder = Self::begin(database, "").await;
        holder.session.execute(LOCK_PET, &[&pet]).await.unwrap();
        holder
    }

    /// The server process of a session that has waited for this transaction for at least this long, if there is one.
    pub(crate) async fn waiter(&self, at_least: Duration) -> Option<i32> {
        let waits = "SELECT pid FROM pg_stat_activity \
            WHERE datname = current_database() AND $1 = ANY (pg_blocking_pids(pid)) \
              AND extract(epoch FROM clock_timestamp() - query_start)::double precision >= $2 LIMIT 1";
        let found = self.watch.query_opt(waits, &[&self.pid, &at_least.as_secs_f64()]).await.unwrap();
        found.map(|row| row.get(0))
    }

    /// Waits until a session waits for this transaction, and returns its server process.
    pub(crate) async fn wait_for_waiter(&self) -> i32 {
        let waiter = async || self.waiter(Duration::ZERO).await;
        poll("somebody waits for the transaction", waiter, Option::is_some).await.unwrap()
    }

    /// Waits until this transaction itself waits for another one.
    pub(crate) async fn wait_until_it_waits(&self) {
        let waits = "SELECT FROM pg_stat_activity WHERE pid = $1 AND cardinality(pg_blocking_pids(pid)) > 0";
        let waits = async || !self.watch.query(waits, &[&self.pid]).await.unwrap().is_empty();
        eventually("the transaction waits", waits).await;
    }

    /// Ends the transaction: `COMMIT` or `ROLLBACK`.
    pub(crate) async fn end(self, how: &str) {
        self.session.batch_execute(how).await.unwrap();
    }
}

/// A point inside of transactions at which they stop, with all of their locks, until it is opened.
pub(crate) struct Gate(pub(crate) Holder);

impl Gate {
    /// Closes a gate where this trigger fires, such as `BEFORE UPDATE ON pets FOR EACH ROW`.
    pub(crate) async fn close(database: &TestDatabase, fires: &str) -> Self {
        Self::create(database, &format!("CREATE OR REPLACE TRIGGER gate {fires}")).await
    }

    /// Closes a gate during the COMMIT of transactions for which this trigger fires, such as `AFTER INSERT ON orders`.
    pub(crate) async fn close_at_commit(database: &TestDatabase, fires: &str) -> Self {
        let deferred =
            format!("CREATE CONSTRAINT TRIGGER gate {fires} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW");
        Self::create(database, &deferred).await
    }

    async fn create(database: &TestDatabase, trigger: &str) -> Self {
        // From here on, the limit for waits of the transaction does not count.
        let function = "CREATE OR REPLACE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
            PERFORM set_config('lock_timeout', '0', true); \
            PERFORM pg_advisory_xact_lock_shared(42); \
            RETURN coalesce(NEW, OLD); END $$";
        let trigger = format!("{function}; {trigger} EXECUTE FUNCTION gate()");
        database.connect().await.batch_execute(&trigger).await.unwrap();
        Self(Holder::begin(database, "SELECT pg_advisory_xact_lock(42)").await)
    }

    /// Waits until a transaction has stopped here, and returns its server process.
    pub(crate) async fn wait_for_arrival(&self) -> i32 {
        self.0.wait_for_waiter().await
    }

    /// Lets the transactions continue, and all later ones pass.
    pub(crate) async fn open(self) {
        self.0.end("COMMIT").await;
    }
}

/// Waits until another session than that of the gate waits for the transaction of this server process.
pub(crate) async fn wait_for_waiter_of(watch: &tokio_postgres::Client, pid: i32) {
    let waits = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND $1 = ANY (pg_blocking_pids(pid))";
    eventually("somebody waits for the transaction", async || {
        !watch.query(waits, &[&pid]).await.unwrap().is_empty()
    })
    .await;
}

/// A point between two round trips of a transaction, which holds all of its locks there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Between {
    /// Nothing is written.
    LocksAndWrites,
    /// Everything is written, and COMMIT is not sent.
    WritesAndCommit,
}

/// A request whose node is stopped between two round trips of its transaction.
pub(crate) struct FrozenRequest {
    /// The server process of the transaction.
    pub(crate) pid: i32,
    /// The request. Its client notices nothing.
    pub(crate) answer: JoinHandle<Result<Answer, reqwest::Error>>,
}

impl FrozenRequest {
    /// Sends a request that changes this pet, and stops the node when the database has done a round trip, but the node has not read
    /// the answer.
    pub(crate) async fn new<F>(
        node: &ServeProcess,
        database: &TestDatabase,
        pet: i64,
        between: Between,
        send: impl Fn(Client) -> F,
    ) -> Self
    where
        F: Future<Output = Result<Answer, reqwest::Error>> + Send + 'static,
    {
        // A machine that stalls may let the wait for the lock time out before the node is stopped.
        for _ in 0..20 {
            let (holder, at_least) = match between {
                // Longer than the first, brief wait of a request.
                Between::LocksAndWrites => (Holder::of_pet(database, pet).await, Duration::from_millis(200)),
                Between::WritesAndCommit => {
                    let Gate(holder) =
                        Gate::close(database, "BEFORE UPDATE OR DELETE ON pets FOR EACH ROW").await;
                    (holder, Duration::ZERO)
                }
            };
            let mut answer = tokio::spawn(send(node.client.clone()));
            let waiter = async || holder.waiter(at_least).await;
            let pid = tokio::select! {
                pid = poll("the request waits", waiter, Option::is_some) => pid.unwrap(),
                _ = &mut answer => continue,
            };
            node.stop_process().await;
            let Holder { session, watch, .. } = holder;
            session.batch_execute("COMMIT").await.unwrap();
            let state = async || -> String {
                let state = "SELECT state FROM pg_stat_activity WHERE pid = $1";
                let row = watch.query_opt(state, &[&pid]).await.unwrap();
                row.and_then(|row| row.get(0)).unwrap_or_default()
            };
            let state = poll("the round trip is done", state, |state| state != "active").await;
            if state == "idle in transaction" {
                return Self { pid, answer };
            }
            node.signal("CONT");
            let answer = answer.await.unwrap().unwrap();
            assert!(is_locked(&answer), "it did not stop between {between:?}: {answer:?}");
        }
        panic!("the machine stalls for too long");
    }
}

/// Whether a request was given up because it waited for a lock: nothing was changed.
pub(crate) fn is_locked(answer: &Answer) -> bool {
    let locked = [(503, "unavailable"), (409, "idempotency_in_progress")];
    answer.status >= 400 && locked.contains(&(answer.status, answer.error().1.as_str()))
}

/// Inserts an idempotency key, as a request in progress does, for today and for tomorrow: midnight may pass.
pub(crate) async fn hold_idempotency_key(transaction: &tokio_postgres::Client, digest: &str) {
    let insert = "INSERT INTO idempotency_keys \
        SELECT $1::text::uuid, (now() AT TIME ZONE 'UTC')::date + day, now(), gen_random_uuid(), 1 \
        FROM generate_series(0, 1) day";
    transaction.execute(insert, &[&digest]).await.unwrap();
}
