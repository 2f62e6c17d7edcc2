//! Blocking ranks that die while they connect to another rank.

use super::*;

/// The number of steps in which two ranks connect.
pub(super) const CONNECTING: usize = 4;

/// Dies after that many steps of connecting to a rank.
pub(super) fn die_connecting(world: &mut World, peer: usize, steps: usize) -> Result<(), Error> {
    world.call(|world, connections| {
        let dies_after = |world: &World, done| {
            if steps == done {
                die(world.ranks.own);
            }
        };
        dies_after(world, 0);
        let until = after(LIMIT);
        let all = [peer];
        world.connect(connections, &all, None, until)?;
        dies_after(world, 1);
        let Connections { peers, .. } = connections;
        let pd = world.pd.clone();
        let builder = pd.create_channel().rendezvous_timeout(LIMIT);
        if peer > world.ranks.own {
            let message = world.receive(peer, at(peers, peer)?, until)?;
            dies_after(world, 2);
            let (address, challenge) = world.ranks.announced(peer, CONNECT, &message)?;
            let greeting = world.ranks.greet(peer, challenge)?;
            let _begun = TcpStream::connect(address).unwrap();
            dies_after(world, 3);
            let _channel = builder.user_bytes(&greeting.bytes).connect(address).unwrap();
            die(world.ranks.own);
        }
        let mut listener = builder.listen(world.ranks.any_port()).unwrap();
        let (challenge, message) = Ranks::announce(CONNECT, listener.local_addr().port())?;
        world.send(peer, &at(peers, peer)?.messages, &message, until)?;
        world.flush(peers, &all, until);
        dies_after(world, 2);
        let client = listener.incoming(Some(LIMIT)).unwrap();
        dies_after(world, 3);
        let answer = world.ranks.admit_only(peer, client.user_bytes(), challenge).unwrap();
        let _channel = client.accept(&answer).unwrap();
        die(world.ranks.own)
    })
}
