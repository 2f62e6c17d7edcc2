//! The memory windows that a queue pair binds to its target: which keys its peer can use, and which
//! of them are valid.

use rdma_sys::{ibv_inc_rkey, ibv_mw_bind_info};
use test_support::rig::window::{Mw, TYPE_1, TYPE_2};
use test_support::rig::{LOCAL_WRITE, MW_BIND, Mr, Pd, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};

use crate::host::{Sent, target_iova};
use crate::memory::DATA;
use crate::run::{Outcome, World, ensure};
use crate::script::{ATOMICS, Kind, READS, SLOTS, ScriptRequest, WRITES, Window};

/// The expected outcome of a request that uses a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Works,
    /// The outcome depends on the order of two requests, which is unknown.
    May,
    Fails,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantState {
    /// The bind has been posted, but has not completed.
    Asked,
    Bound,
    Gone,
}

/// One binding of a window, which grants access to the peer.
#[derive(Debug)]
pub(crate) struct Grant {
    slot: usize,
    pub(crate) key: u32,
    from: usize,
    bytes: usize,
    rights: u8,
    state: GrantState,
    /// Whether the owner has posted a request that ends the grant.
    taken_back: bool,
    /// Whether the peer has posted a SEND that invalidates the key.
    sent_back: bool,
    /// Whether the grant may have ended before requests in flight were executed.
    raced: bool,
    /// Whether packets that use the key may still arrive, because a request failed or its queue
    /// pair no longer exists.
    lingers: bool,
}

/// The grant that a request uses or changes, and the expected outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) grant: usize,
    pub(crate) key: u32,
    pub(crate) verdict: Verdict,
    /// For a bind: the window's grant before it.
    before: Option<usize>,
}

/// The windows of a queue pair, by slot, and all grants that they have had.
#[derive(Default)]
pub(crate) struct Windows {
    there: [Option<Mw>; SLOTS],
    /// The latest key of each window.
    keys: [u32; SLOTS],
    grants: Vec<Grant>,
}

pub(crate) fn is_first_type(slot: usize) -> bool {
    slot.is_multiple_of(SLOTS)
}

impl Grant {
    fn is_first_type(&self) -> bool {
        is_first_type(self.slot)
    }

    /// Returns the outcome that is expected if the peer posts this request now.
    fn verdict(&self, request: &ScriptRequest) -> Verdict {
        let (right, from, length) = match request.kind {
            Kind::Read => (READS, DATA + request.at, request.length),
            Kind::Write => (WRITES, DATA + request.at, request.length),
            _ => (ATOMICS, 8 * (request.at % crate::memory::WORDS), 8),
        };
        let inside = from >= self.from && from + length <= self.from + self.bytes;
        match self.state {
            // An access of zero bytes does not check the key.
            _ if length == 0 => Verdict::Works,
            GrantState::Gone => Verdict::Fails,
            // If `sent_back` is set, the peer posted the SEND that invalidates the key before this
            // request. The key is therefore invalid when this request is executed.
            _ if self.sent_back || !inside || self.rights & right == 0 => Verdict::Fails,
            GrantState::Bound if !self.taken_back => Verdict::Works,
            _ => Verdict::May,
        }
    }

    /// Returns the outcome that is expected if the peer posts a SEND that invalidates the grant.
    fn verdict_of_send(&self) -> Verdict {
        match self.state {
            GrantState::Gone => Verdict::Fails,
            _ if self.is_first_type() || self.sent_back => Verdict::Fails,
            GrantState::Bound if !self.taken_back => Verdict::Works,
            _ => Verdict::May,
        }
    }

    /// Returns the outcome that is expected if the owner posts a request that ends the grant.
    fn verdict_of_taking_back(&self) -> Verdict {
        match self.state {
            // The owner ends a type 1 grant with a bind of zero bytes, which always succeeds.
            _ if self.is_first_type() => Verdict::Works,
            GrantState::Gone => Verdict::Fails,
            _ if self.taken_back => Verdict::Fails,
            _ if self.sent_back => Verdict::May,
            _ => Verdict::Works,
        }
    }

    fn is_certainly_bound(&self) -> bool {
        self.state == GrantState::Bound && !self.taken_back && !self.sent_back
    }
}

impl Windows {
    /// Returns the grant that this slot's window had `back` binds ago.
    fn grant(&self, slot: usize, back: usize) -> Option<usize> {
        let of_slot = |n: &usize| self.grants[*n].slot == slot;
        (0..self.grants.len()).rev().filter(of_slot).nth(back)
    }

    /// Returns the expected outcome of a bind, and the window's grant before it.
    fn verdict_of_bind(&self, slot: usize) -> (Verdict, Option<usize>) {
        let before = self.grant(slot, 0);
        let verdict = match before.map(|n| &self.grants[n]) {
            None => Verdict::Works,
            Some(_) if is_first_type(slot) => Verdict::Works,
            Some(grant) if grant.state == GrantState::Gone || grant.taken_back => Verdict::Works,
            Some(grant) if grant.sent_back => Verdict::May,
            Some(_) => Verdict::Fails,
        };
        (verdict, before)
    }

    /// Returns the slot's window. Allocates it if necessary.
    pub(crate) fn window(&mut self, slot: usize, pd: &Pd) -> &Mw {
        let key = &mut self.keys[slot];
        self.there[slot].get_or_insert_with(|| {
            let window = pd.mw(if is_first_type(slot) { TYPE_1 } else { TYPE_2 });
            *key = window.key();
            window
        })
    }

    /// Returns the slot's window, if it exists.
    pub(crate) fn known(&self, slot: usize) -> Option<&Mw> {
        self.there[slot].as_ref()
    }

    /// Returns the next key for the type 2 window of this slot, as `ibv_inc_rkey` computes it.
    pub(crate) fn next_key(&mut self, slot: usize) -> u32 {
        self.keys[slot] = ibv_inc_rkey(self.keys[slot]);
        self.keys[slot]
    }

    /// Records the key that posting a type 1 bind returned.
    pub(crate) fn note_key(&mut self, grant: usize, key: u32) {
        self.grants[grant].key = key;
    }

    /// Returns true if bound windows prevent the target from being deregistered.
    pub(crate) fn hold(&self) -> bool {
        self.grants.iter().any(Grant::is_certainly_bound)
    }

    /// Deallocates the window of a slot.
    fn deallocate(&mut self, slot: usize) {
        self.there[slot] = None;
        for grant in self.grants.iter_mut().filter(|grant| grant.slot == slot) {
            grant.state = GrantState::Gone;
        }
    }
}

/// Returns the part of a target that the window is to cover, and the rights.
pub(crate) fn part(end: usize, target: &Mr, window: &Window) -> ibv_mw_bind_info {
    let right = |bit: u8, right: u32| if window.rights & bit != 0 { right } else { 0 };
    ibv_mw_bind_info {
        mr: target.mr,
        addr: target_iova(end) + window.from as u64,
        length: window.bytes as u64,
        mw_access_flags: right(READS, REMOTE_READ)
            | right(WRITES, REMOTE_WRITE)
            | right(ATOMICS, REMOTE_ATOMIC),
    }
}

/// The rights that a target needs so that windows can be bound to it.
pub(crate) const BINDABLE: u32 = LOCAL_WRITE | MW_BIND;

impl World<'_> {
    /// Returns how a request uses a window: `Some(None)` if it uses none, and `None` if it must be
    /// skipped. If a careful request may fail, it loses its window or is skipped.
    pub(crate) fn use_window(
        &mut self,
        end: usize,
        request: &mut ScriptRequest,
    ) -> Option<Option<Use>> {
        let Some(window) = request.window else { return Some(None) };
        let slot = window.slot % SLOTS;
        match request.kind {
            Kind::Bind => self.use_for_bind(end, &window).map(Some),
            Kind::Invalidate => self.use_for_end(end, slot, &window).map(Some),
            _ => {
                let used = self.use_of_peer(end, slot, &window, request);
                if used.is_none() {
                    request.window = None;
                }
                Some(used)
            }
        }
    }

    fn use_for_bind(&mut self, end: usize, window: &Window) -> Option<Use> {
        let slot = window.slot % SLOTS;
        let (verdict, before) = self.ends[end].windows.verdict_of_bind(slot);
        let first = is_first_type(slot);
        let in_use = before.is_some_and(|grant| first && self.is_used(end, grant));
        if self.ends[end].target.is_none()
            || window.careful && (verdict != Verdict::Works || in_use)
        {
            return None;
        }
        if let Some(before) = before.filter(|_| first) {
            self.take_back(end, before);
        }
        let own = &mut self.ends[end];
        own.windows.window(slot, &self.hosts[own.device].pd);
        // The key of a type 1 window is known only when the bind has been posted.
        let key = if first { 0 } else { own.windows.next_key(slot) };
        own.windows.grants.push(Grant {
            slot,
            key,
            from: window.from,
            bytes: window.bytes,
            rights: window.rights,
            state: GrantState::Asked,
            taken_back: false,
            sent_back: false,
            raced: false,
            lingers: false,
        });
        Some(Use { grant: own.windows.grants.len() - 1, key, verdict, before })
    }

    fn use_for_end(&mut self, end: usize, slot: usize, window: &Window) -> Option<Use> {
        let own = &self.ends[end];
        own.windows.known(slot)?;
        // A type 1 grant is ended by a bind of zero bytes, which always applies to the latest
        // grant.
        let back = if is_first_type(slot) { 0 } else { window.back };
        let grant = own.windows.grant(slot, back)?;
        let (key, verdict) = {
            let grant = &own.windows.grants[grant];
            (grant.key, grant.verdict_of_taking_back())
        };
        let gone = own.target.is_none();
        if gone || window.careful && (verdict != Verdict::Works || self.is_used(end, grant)) {
            return None;
        }
        self.take_back(end, grant);
        Some(Use { grant, key, verdict, before: None })
    }

    /// Returns how a request uses a window of the peer.
    fn use_of_peer(
        &mut self,
        end: usize,
        slot: usize,
        window: &Window,
        request: &mut ScriptRequest,
    ) -> Option<Use> {
        let owner = self.ends[end].peer;
        let windows = &self.ends[owner].windows;
        let grant = windows.grant(slot, window.back)?;
        let there = &windows.grants[grant];
        let last = (there.from + there.bytes).checked_sub(DATA + request.length);
        if let (Some(behind), Some(last), Kind::Read | Kind::Write) =
            (window.edge, last, request.kind)
        {
            let longest = self.script.settings.longest;
            request.at = (last + usize::from(behind)).min(longest);
        }
        let is_send = request.kind == Kind::Send;
        let verdict = if is_send { there.verdict_of_send() } else { there.verdict(request) };
        if window.careful && verdict != Verdict::Works {
            return None;
        }
        let key = there.key;
        if is_send {
            self.send_back(end, grant, verdict, window.careful, request);
        } else if verdict != Verdict::Works {
            self.may_refuse(owner);
        }
        Some(Use { grant, key, verdict, before: None })
    }

    /// Records a SEND that invalidates the grant when it arrives.
    fn send_back(
        &mut self,
        end: usize,
        grant: usize,
        verdict: Verdict,
        careful: bool,
        request: &mut ScriptRequest,
    ) {
        let owner = self.ends[end].peer;
        // If a READ is retransmitted, its key must still be valid.
        let reads = self.ends[end].pending.iter().any(|sent| {
            sent.request.kind == Kind::Read && sent.through.is_some_and(|used| used.grant == grant)
        });
        request.fenced |= careful && reads;
        if reads && !request.fenced {
            self.race(owner, grant);
        }
        let grant = &mut self.ends[owner].windows.grants[grant];
        grant.sent_back |= verdict != Verdict::Fails;
        if verdict != Verdict::Works {
            self.may_refuse(owner);
        }
    }

    /// Returns true if requests of the peer that use the grant may be in flight.
    fn is_used(&self, owner: usize, grant: usize) -> bool {
        let through = |used: &Use| used.grant == grant;
        let pending = &self.ends[self.ends[owner].peer].pending;
        let lingers = |grants: &[Grant]| grants.get(grant).is_some_and(|it| it.lingers);
        lingers(&self.ends[owner].windows.grants)
            || pending.iter().any(|sent| sent.through.as_ref().is_some_and(through))
    }

    /// Records that the peer has stopped waiting for a request whose packets may still arrive.
    pub(crate) fn linger(&mut self, owner: usize, sent: &Sent) {
        let used = sent.through.filter(|_| !sent.request.kind.is_local());
        let grants = &mut self.ends[owner].windows.grants;
        if let Some(grant) = used.and_then(|used| grants.get_mut(used.grant)) {
            grant.lingers = true;
        }
    }

    /// Records that the owner has posted a request that ends the grant.
    fn take_back(&mut self, owner: usize, grant: usize) {
        if self.ends[owner].windows.grants[grant].state != GrantState::Gone {
            self.ends[owner].windows.grants[grant].taken_back = true;
            self.race(owner, grant);
        }
    }

    /// Records that the grant may end before or after the peer's requests in flight are executed.
    fn race(&mut self, owner: usize, grant: usize) {
        self.ends[owner].windows.grants[grant].raced = true;
        if self.is_used(owner, grant) {
            self.may_refuse(owner);
        }
    }

    /// Records that a queue pair may refuse a request of its peer, which would move the queue pair
    /// to the error state.
    fn may_refuse(&mut self, owner: usize) {
        self.ends[owner].excuses.flushed = true;
        let peer = self.ends[owner].peer;
        self.ends[peer].excuses.silence = true;
    }

    /// Returns the expected outcome of a request, from what is known now.
    pub(crate) fn verdict(&self, end: usize, request: &ScriptRequest, used: &Use) -> Verdict {
        let own = &self.ends[end];
        let owner = if request.kind.is_local() { own } else { &self.ends[own.peer] };
        let grants = &owner.windows.grants;
        let Some(grant) = grants.get(used.grant) else { return Verdict::May };
        let changed = match request.kind {
            // The peer may have invalidated the previous grant in the meantime.
            Kind::Bind => used.before.and_then(|n| grants.get(n)).is_some_and(|it| it.sent_back),
            Kind::Invalidate => grant.sent_back,
            _ => {
                grant.raced && used.verdict == Verdict::Works && request.length > 0
                    || grant.raced && request.kind == Kind::Send
            }
        };
        let first = is_first_type(grant.slot);
        match used.verdict {
            _ if request.kind.is_local() && own.excuses.binds => Verdict::May,
            Verdict::Works if changed && !(first && request.kind.is_local()) => Verdict::May,
            Verdict::Fails if changed && request.kind == Kind::Bind => Verdict::May,
            verdict => verdict,
        }
    }

    /// Accounts for a successful bind or invalidation of one of the queue pair's own windows.
    pub(crate) fn bound(&mut self, end: usize, request: &ScriptRequest, used: &Use) -> Outcome {
        let fails = self.verdict(end, request, used) == Verdict::Fails;
        ensure!(!fails, "succeeded although the window's state forbids it");
        let grants = &mut self.ends[end].windows.grants;
        if let Some(before) = used.before {
            grants[before].state = GrantState::Gone;
        }
        let grant = &mut grants[used.grant];
        match request.kind {
            Kind::Bind if grant.state == GrantState::Asked => grant.state = GrantState::Bound,
            // The window was deallocated in the meantime, or the peer has invalidated it. The grant
            // stays invalid.
            Kind::Bind => {}
            _ => grant.state = GrantState::Gone,
        }
        Ok(())
    }

    /// Accounts for a failed bind or invalidation of one of the queue pair's own windows. If it was
    /// a bind, the new grant is invalid.
    pub(crate) fn not_bound(&mut self, end: usize, request: &ScriptRequest, used: &Use) {
        if request.kind == Kind::Bind {
            self.ends[end].windows.grants[used.grant].state = GrantState::Gone;
        }
    }

    /// Accounts for the arrival of a SEND that has invalidated the grant.
    pub(crate) fn came_back(&mut self, owner: usize, used: &Use) {
        self.ends[owner].windows.grants[used.grant].state = GrantState::Gone;
    }

    /// Returns the expected outcome of a SEND that invalidates a key, from what is known now.
    pub(crate) fn verdict_of_send(&self, owner: usize, used: &Use) -> Verdict {
        let raced = self.ends[owner].windows.grants.get(used.grant).is_none_or(|it| it.raced);
        if raced && used.verdict == Verdict::Works { Verdict::May } else { used.verdict }
    }

    /// Deallocates a window. From now on, accesses with its keys fail.
    pub(crate) fn deallocate(&mut self, end: usize, slot: usize) {
        for grant in 0..self.ends[end].windows.grants.len() {
            if self.ends[end].windows.grants[grant].slot == slot {
                self.take_back(end, grant);
            }
        }
        let own = &mut self.ends[end];
        own.excuses.binds |= own.pending.iter().any(|sent| sent.request.kind.is_local());
        own.windows.deallocate(slot);
    }

    /// Like [`Self::deallocate`], but only if no request in flight uses the window.
    pub(crate) fn deallocate_unused(&mut self, end: usize, slot: usize) {
        let of_slot = |n: &usize| self.ends[end].windows.grants[*n].slot == slot;
        let mut grants = (0..self.ends[end].windows.grants.len()).filter(of_slot);
        let used = grants.any(|grant| self.is_used(end, grant));
        let asked = self.ends[end].pending.iter().any(|sent| sent.request.kind.is_local());
        if !used && !asked {
            self.deallocate(end, slot);
        }
    }
}
