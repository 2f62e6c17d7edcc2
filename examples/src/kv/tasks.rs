//! The same store, implemented with tokio tasks: a server with one task for each client, and a
//! client with many tasks that read concurrently. Both can also be used with the
//! [`server`](super::server) and the [`client`](super::client) that use threads.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rdma::aio::{Connection, ConnectionOptions, Driver, Listener};
use rdma::prelude::*;
use tokio::time::timeout;

use super::client::{TRIES, always_written};
use super::entry::{Entry, SLOT, check};
use super::server::{put, table};
use super::{
    LIMIT, REQUEST, RING, STORED, access, can_count, greeting, offset, places, read_greeting,
};
use rdma_examples_common::{Failure, warn};

fn options(pd: &ProtectionDomain, counts: bool) -> ConnectionOptions {
    // If the machine of the other end is silent for this long, the connection ends.
    let qp = pd.create_qp().access(access(counts));
    ConnectionOptions::from(qp.max_send_wr(RING)).peer_timeout(LIMIT)
}

/// A table, and the listener that its clients connect to.
#[derive(Debug)]
pub struct Store {
    listener: Listener,
    /// The table. The lock lets the clients' tasks write one at a time.
    table: Arc<Mutex<SharedRegion>>,
    pool: BufferPool,
}

impl Store {
    /// Creates an empty table.
    ///
    /// # Errors
    /// Returns an error if the memory cannot be allocated, or if the address cannot be used.
    pub async fn new(
        driver: &Driver,
        pd: &ProtectionDomain,
        address: &str,
    ) -> Result<Self, Failure> {
        let counts = can_count(pd)?;
        let table = table(pd, counts)?;
        // Each client receives the location of the table.
        let options = options(pd, counts).user_bytes(&greeting(&table, counts));
        let listener = driver.listen(address, options).await?;
        Ok(Self { listener, table: Arc::new(Mutex::new(table)), pool: BufferPool::new(pd) })
    }

    /// Returns the address to which clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr()
    }

    /// Serves clients until the future is dropped. Dropping it disconnects no client.
    ///
    /// # Errors
    /// Returns an error if no further clients can be accepted. If a client fails, the error is
    /// printed and the server continues.
    pub async fn run(&self) -> Result<(), Failure> {
        loop {
            let connection = self.listener.accept().await?;
            let (table, pool) = (Arc::clone(&self.table), self.pool.clone());
            tokio::spawn(async move {
                if let Err(error) = serve(&connection, &table, &pool).await {
                    warn(format_args!("a client: {error}"));
                }
            });
        }
    }
}

/// Answers the requests of a client until it leaves.
async fn serve(
    connection: &Connection,
    table: &Mutex<SharedRegion>,
    pool: &BufferPool,
) -> Result<(), Failure> {
    let mut next = connection.receive(pool.allocate(REQUEST)?).post().await?;
    loop {
        let received = match next.await {
            Ok(received) => received,
            // The client has left, because it has no further requests.
            Err(_) if connection.closed().is_some() => return Ok(()),
            Err(failed) => return Err(failed.into()),
        };
        let outcome = {
            let table = table.lock().unwrap_or_else(PoisonError::into_inner);
            put(&received.memory[..received.length], &table)
        };
        let said = outcome.map_or_else(str::as_bytes, |()| STORED);
        let mut answer = pool.allocate(said.len())?;
        answer.copy_from_slice(said);
        // The receive is posted before the answer is sent, so the client's next request finds it.
        next = connection.receive(received.memory).post().await?;
        timeout(LIMIT, connection.send(answer).into_future()).await??;
    }
}

/// A connection to a server. Other tasks can use clones, which share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Connection,
    table: RemoteMemoryRegion,
    /// Whether this client counts its operations. It does if both devices have atomics.
    counts: bool,
    pool: BufferPool,
    /// A lock that a task holds from its request to the answer.
    asks: Arc<tokio::sync::Mutex<()>>,
}

impl Client {
    /// Connects to a server, and receives the location of its table.
    ///
    /// # Errors
    /// Returns an error if no process is listening on this address, or if it is not a server of this
    /// store.
    pub async fn connect(
        driver: &Driver,
        pd: &ProtectionDomain,
        address: &str,
    ) -> Result<Self, Failure> {
        let can_count = can_count(pd)?;
        let (connection, told) = driver.connect(address, options(pd, can_count)).await?;
        let (table, counts) = read_greeting(&told, address)?;
        let (pool, asks) = (BufferPool::new(pd), Arc::default());
        Ok(Self { connection, table, counts: counts && can_count, pool, asks })
    }

    /// Reads the value of a key from the server's memory.
    ///
    /// # Errors
    /// Returns an error if the key is empty or too long, or if a read fails or takes too long. Also
    /// returns an error if the server is writing to a slot whenever it is read.
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Failure> {
        check(key.as_bytes(), &[])?;
        self.count().await?;
        for slot in places(key.as_bytes()) {
            let entry = self.read(slot).await?;
            if entry.key == key.as_bytes() {
                return Ok(Some(entry.value));
            }
            if entry.key.is_empty() {
                break;
            }
        }
        Ok(None)
    }

    /// Requests that the server store a value in its table.
    ///
    /// # Errors
    /// Returns an error if the key is empty, or if the key or the value is too long. Also returns
    /// an error if the server has no free slot for the key, or does not answer.
    pub async fn put(&self, key: &str, value: &str) -> Result<(), Failure> {
        check(key.as_bytes(), value.as_bytes())?;
        self.count().await?;
        let length = u8::try_from(key.len())?; // `check` ensures that it fits
        let request = [&[length], key.as_bytes(), value.as_bytes()].concat();
        let mut bytes = self.pool.allocate(request.len())?;
        bytes.copy_from_slice(&request);
        let _turn = self.asks.lock().await;
        let answer = self.connection.receive(self.pool.allocate(REQUEST)?).post().await?;
        timeout(LIMIT, self.connection.send(bytes).into_future()).await??;
        let answer = timeout(LIMIT, answer).await??;
        match &answer.memory[..answer.length] {
            STORED => Ok(()),
            why => {
                let why = String::from_utf8_lossy(why);
                Err(format!("the server has not stored it: {why}").into())
            }
        }
    }

    /// Returns the number of operations that clients have begun, including those of this client.
    /// Returns `None` if this client cannot count.
    ///
    /// # Errors
    /// Returns an error if the atomic fails.
    pub async fn operations(&self) -> Result<Option<u64>, Failure> {
        self.add(0).await
    }

    async fn count(&self) -> Result<(), Failure> {
        self.add(1).await.map(drop)
    }

    /// Adds `more` to the server's counter, and returns the counter's previous value.
    async fn add(&self, more: u64) -> Result<Option<u64>, Failure> {
        if !self.counts {
            return Ok(None);
        }
        let counter = self.table.slice(0..8).ok_or("the table is too short")?;
        Ok(Some(timeout(LIMIT, self.connection.fetch_add(counter, more).into_future()).await??))
    }

    async fn read(&self, slot: usize) -> Result<Entry, Failure> {
        let place = self.table.slice(offset(slot)..offset(slot) + SLOT);
        let place = place.ok_or("the table is too short")?;
        let mut buffer = self.pool.allocate(SLOT)?;
        for _ in 0..TRIES {
            buffer = timeout(LIMIT, self.connection.read(buffer, place).into_future()).await??;
            if let Some(entry) = Entry::from_bytes(&buffer) {
                return Ok(entry);
            }
        }
        Err(always_written(slot))
    }
}
