use super::*;

/// A connection without a queue pair, with its cursors at the first slots.
fn connection(slots: &Slots, asked: Asked) -> Connection {
    let connection = Connection::new(None, slots, 1, asked);
    for queue in [&connection.send, &connection.receive] {
        assert!(queue.next_free().is_none(), "a slot is at hand without a queue pair");
        queue.cursor.set(queue.first);
    }
    connection
}

#[test]
fn rings_go_round() {
    let slots = Slots::new((1..=5).map(|index| RequestSlot::new(index, 0)));
    let asked = Asked { sends: 3, receives: 2, signals_all: false };
    let connection = connection(&slots, asked);
    for (queue, indices) in [(&connection.send, 1..4), (&connection.receive, 4..6)] {
        for id in indices.clone().chain([indices.start]) {
            let slot = queue.next_free().unwrap();
            assert_eq!(slot.id(), id);
            queue.advance(slot);
        }
    }
    connection.close(CloseReason::Asked);
    assert!(connection.send.next_free().is_none() && connection.receive.next_free().is_none());
    assert!(connection.send.cursor().state().is(SlotState::DEAD));
}

#[test]
fn a_queue_without_room_has_only_the_dead_slot() {
    let slots = Slots::new(std::iter::empty());
    let connection = connection(&slots, Asked::default());
    assert!(connection.send.next_free().is_none());
    assert_eq!(connection.receive.capacity(), 0);
    let queues = Queues::new(Vec::new(), Asked::default());
    assert!(queues.iter().next().is_none() && queues.get(0).is_none());
    assert!(queues.only().qp().is_none() && queues.by_id(1).state().is(SlotState::DEAD));
}

#[test]
fn slots_stay_where_they_are_while_their_queues_move() {
    let slots = Slots::new((1..=3).map(|index| RequestSlot::new(index, 0)));
    let queue = Queue::new(&slots, 1, 3);
    let moved = std::thread::spawn(move || Box::new((queue, slots))).join().unwrap();
    let slot = moved.0.next_free().unwrap();
    assert!(std::ptr::eq(slot, &raw const moved.1.all()[1]));
    assert!(std::ptr::eq(slot.next(), &raw const moved.1.all()[2]));
}

#[test]
fn half_a_queue_has_a_signaled_request_or_all_are() {
    let slots = Slots::new((1..=100).map(|index| RequestSlot::new(index, 0)));
    let longest = |sends, signals_all| {
        let asked = Asked { sends, receives: 0, signals_all };
        let connection = Connection::new(None, &slots, 1, asked);
        (0..).take_while(|&run| !connection.has_to_signal_behind(run)).count()
    };
    assert_eq!([0, 1, 2, 3, 4, 5, 8].map(|sends| longest(sends, false)), [0, 0, 0, 0, 1, 1, 3]);
    assert_eq!([0, 4, 100].map(|sends| longest(sends, true)), [0; 3]);
}

#[test]
fn a_slot_is_found_by_the_id_of_each_of_its_generations() {
    let slot = RequestSlot::new(7, 0);
    let first = slot.id();
    slot.free();
    assert_ne!(slot.id(), first);
    assert_eq!((index(first), index(slot.id())), (7, 7));
    assert_eq!((first >> INDEX_BITS, slot.id() >> INDEX_BITS), (0, 1));
    slot.id.set(u64::MAX << INDEX_BITS | 7);
    slot.free();
    assert_eq!(slot.id(), 7, "generations wrap around, and no WR ID is 0");
}
