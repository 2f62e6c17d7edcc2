//! Asynchronous ranks that die before each step of each collective, in the [tests](crate::world::tests) of all ranks.

use rdma_mem::BufferPool;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::world::tests::{CONNECT, LIMIT, Rank, die, domain, next_written};

/// A rank whose runtime has a single thread.
pub(crate) struct Asynchronous {
    world: World,
    runtime: Runtime,
}

impl Asynchronous {
    pub(crate) fn join(settings: Settings) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let joined = runtime.block_on(World::join(&domain(), settings, [LIMIT; 2]));
        Self { world: joined.unwrap(), runtime }
    }
}

impl Rank for Asynchronous {
    fn ranks(&self) -> &Ranks {
        &self.world.ranks
    }

    fn ranks_mut(&mut self) -> &mut Ranks {
        &mut self.world.ranks
    }

    fn expect_no_decision(&mut self) {
        self.world.ranks.star.decision = Duration::ZERO;
    }

    fn pool(&self) -> &BufferPool {
        self.world.pool.as_blocking()
    }

    fn execute(&mut self, run: Run<'_, u64>) -> Result<(), Error> {
        self.runtime.block_on(self.world.execute(run))
    }

    fn die_in(&mut self, run: Run<'_, u64>, steps: usize, writes: bool) -> Result<(), Error> {
        self.runtime.block_on(async {
            let mut call = self.world.begin()?;
            let (world, connections) = call.parts()?;
            let result = world.die_in(connections, run, steps, writes).await;
            call.end(result).await
        })
    }

    fn connect_to(&mut self, rank: usize, call: Call) -> Result<(), Error> {
        self.runtime.block_on(self.world.connect_to(rank, call)).map(drop)
    }

    fn die_connecting(&mut self, peer: usize, steps: usize) -> Result<(), Error> {
        self.runtime.block_on(async {
            let mut call = self.world.begin()?;
            let (world, connections) = call.parts()?;
            let result = world.die_connecting(connections, peer, steps).await;
            call.end(result).await
        })
    }
}

impl World {
    async fn die_in(
        &mut self,
        connections: &mut Connections,
        mut run: Run<'_, u64>,
        steps: usize,
        writes: bool,
    ) -> Result<(), Failure> {
        let until = after(LIMIT);
        self.prepare(connections, &run, until).await?;
        for _ in 0..steps {
            assert!(self.step(connections, &mut run, until).await?.is_continue());
        }
        let Connections { peers, staged, .. } = connections;
        self.flush(peers, run.peers(), until).await;
        if writes {
            let (rank, part) = next_written(&mut run);
            self.write(rank, at(peers, rank)?, (&mut run, &part), staged, until).await?;
        }
        die(self.ranks.own)
    }
    async fn die_connecting(
        &mut self,
        connections: &mut Connections,
        peer: usize,
        steps: usize,
    ) -> Result<(), Failure> {
        let own = self.ranks.own;
        let dies_after = |done| {
            if steps == done {
                die(own);
            }
        };
        dies_after(0);
        let until = after(LIMIT);
        self.connect(connections, &[peer], None, until).await?;
        dies_after(1);
        let peers = &mut connections.peers;
        let options = ConnectionOptions::new(&self.pd).rendezvous_timeout(LIMIT);
        if peer > own {
            let message = self.receive(peer, at(peers, peer)?, until).await?;
            dies_after(2);
            let (address, challenge) = self.ranks.announced(peer, CONNECT, &message)?;
            let greeting = self.ranks.greet(peer, challenge)?;
            let _begun = TcpStream::connect(address).await.unwrap();
            dies_after(3);
            let options = options.user_bytes(&greeting.bytes);
            let _connection = self.driver.connect(address, options).await.unwrap();
            die(own);
        }
        let listener = self.driver.listen(self.ranks.any_port(), options).await.unwrap();
        let (challenge, message) = Ranks::announce(CONNECT, listener.local_addr().port())?;
        self.send(peer, &at(peers, peer)?.messages, &message, until).await?;
        self.flush(peers, &[peer], until).await;
        dies_after(2);
        let client = listener.incoming().await.unwrap();
        dies_after(3);
        let answer = self.ranks.admit_only(peer, client.user_bytes(), challenge).unwrap();
        let _connection = client.accept(&answer).unwrap();
        die(own)
    }
}
