//! Checks completions: which ones are allowed, in which order, and what they contain.

use std::hash::Hash;

use rdma_sys::{
    ibv_qp_state as State, ibv_wc, ibv_wc_flags as Flags, ibv_wc_opcode as Code,
    ibv_wc_status as Status,
};
use test_support::rig::datagram::HEADER;
use test_support::rig::window::invalidated;
use test_support::rig::{Cq, imm_of};

use crate::groups;
use crate::host::{BETWEEN, Message, Sent, untouched};
use crate::memory::{self, DATA};
use crate::post::unpack;
use crate::run::{Outcome, SHARED, World, ensure};
use crate::script::{Connection, GROUPS, Kind, SLOTS, ScriptRequest, Service};
use crate::windows::{Use, Verdict, is_first_type};

/// The maximum number of completions polled per call.
const POLLED: usize = 16;

fn poll(cq: &Cq) -> Outcome<Vec<ibv_wc>> {
    let mut all = Vec::new();
    loop {
        let polled = cq.try_poll::<POLLED>().map_err(|error| format!("a poll failed: {error}"))?;
        let last = polled.len() < POLLED;
        all.extend(polled);
        if last {
            return Ok(all);
        }
    }
}

/// Returns the opcode that the completion of this request must have.
fn code(request: &ScriptRequest) -> Code {
    let first = request.window.is_some_and(|window| is_first_type(window.slot % SLOTS));
    match request.kind {
        Kind::Send => Code::IBV_WC_SEND,
        Kind::Write => Code::IBV_WC_RDMA_WRITE,
        Kind::Read => Code::IBV_WC_RDMA_READ,
        Kind::FetchAdd => Code::IBV_WC_FETCH_ADD,
        Kind::CompareSwap => Code::IBV_WC_COMP_SWAP,
        Kind::Invalidate if !first => Code::IBV_WC_LOCAL_INV,
        Kind::Bind | Kind::Invalidate => Code::IBV_WC_BIND_MW,
    }
}

impl World<'_> {
    /// Polls all completion queues and checks the completions. Receive completions are polled last
    /// but checked first. Therefore, when a send completion is checked, the arrival of its message
    /// has already been recorded.
    pub(crate) fn complete(&mut self) -> Outcome {
        let ends = self.ends.iter().enumerate();
        let flushed: Vec<_> =
            ends.filter(|(_, own)| own.flushed_early).map(|(end, _)| end).collect();
        let mut sends = Vec::new();
        for host in &self.hosts {
            sends.extend(poll(&host.send_cq)?);
        }
        for device in 0..self.hosts.len() {
            for wc in poll(&self.hosts[device].receive_cq)? {
                (wc.wr_id, wc.status.0, wc.byte_len).hash(&mut self.trace);
                self.received(device, &wc)?;
            }
        }
        for wc in &sends {
            (wc.wr_id, wc.status.0).hash(&mut self.trace);
        }
        self.sent_in_any_order(sends)?;
        for end in flushed {
            let own = &self.ends[end];
            ensure!(
                own.failed || own.excuses.flushed,
                "q{end}: receives were flushed for no reason"
            );
        }
        Ok(())
    }

    /// Checks the completions of send requests. The completions of one queue pair are in order, but
    /// the order in which two queue pairs failed is unknown. A queue pair that has failed no longer
    /// answers its peer, so requests of the peer can exhaust their retries. Such a failure is
    /// checked only after the other completions, which may include its cause.
    fn sent_in_any_order(&mut self, mut sends: Vec<ibv_wc>) -> Outcome {
        loop {
            let before = sends.len();
            let mut waiting = Vec::new();
            for wc in std::mem::take(&mut sends) {
                let end = wc.wr_id >> 32;
                let alone = wc.status == Status::IBV_WC_RETRY_EXC_ERR
                    && self.ends.get(end as usize).is_some_and(|own| !own.excuses.silence);
                if alone || waiting.iter().any(|first: &ibv_wc| first.wr_id >> 32 == end) {
                    waiting.push(wc);
                } else {
                    self.sent(&wc).map_err(|why| format!("q{end}: {why}"))?;
                }
            }
            sends = waiting;
            if let Some(first) = sends.first().filter(|_| sends.len() == before) {
                return self.sent(first).map_err(|why| format!("q{}: {why}", first.wr_id >> 32));
            }
            if sends.is_empty() {
                return Ok(());
            }
        }
    }

    /// Checks the completion of a send request.
    fn sent(&mut self, wc: &ibv_wc) -> Outcome {
        let (end, sequence) = ((wc.wr_id >> 32) as usize, wc.wr_id as u32);
        let known = self.ends.get(end).is_some_and(|own| {
            own.qp.as_ref().is_some_and(|qp| qp.number() == wc.qp_num)
                && own.pending.iter().any(|sent| sent.sequence == sequence)
        });
        ensure!(known, "request {sequence} completed, which is unknown or already done");
        let succeeded = wc.status == Status::IBV_WC_SUCCESS;
        ensure!(
            !(succeeded && self.ends[end].failed),
            "request {sequence} succeeded after a failure"
        );
        loop {
            let Some(sent) = self.ends[end].pending.pop_front() else { return Ok(()) };
            self.ends[end].release(sent.block_bytes);
            let is_it = sent.sequence == sequence;
            let what = format!("request {}, {}", sent.sequence, sent.request);
            if !is_it {
                let silent = !sent.request.signaled && !self.ends[end].failed;
                ensure!(silent, "{what}, did not complete, but a later request did");
                self.succeeded(end, &sent).map_err(|why| format!("{what}: {why}"))?;
                continue;
            }
            if succeeded {
                ensure!(
                    sent.request.signaled,
                    "{what}, has a completion although it is unsignaled"
                );
                let expected = code(&sent.request);
                ensure!(wc.opcode == expected, "{what}, completed as {:?}", wc.opcode);
                self.succeeded(end, &sent).map_err(|why| format!("{what}: {why}"))?;
            } else {
                self.failed(end, &sent, wc.status).map_err(|why| format!("{what}: {why}"))?;
            }
            return Ok(());
        }
    }

    /// Checks the results of a request that succeeded, and records its effects. Its local memory
    /// has been released, but is not in use again yet.
    pub(crate) fn succeeded(&mut self, end: usize, sent: &Sent) -> Outcome {
        let own = &self.ends[end];
        let (to, request) = (own.peer, &sent.request);
        let one_sided = request.kind != Kind::Send && request.length > 0;
        if own.service != Service::Reliable {
            if let Some(placed) = sent.placed {
                self.ends[to].known.uncertain.push(placed);
            }
            return Ok(());
        }
        if let Some(used) = sent.through.filter(|_| request.kind.is_local()) {
            return self.bound(end, request, &used);
        }
        if let Some(used) = sent.through.filter(|_| request.kind != Kind::Send) {
            let fails = self.verdict(end, request, &used) == Verdict::Fails;
            ensure!(!fails, "succeeded with a key that does not allow it");
        }
        ensure!(!(one_sided && sent.too_late), "succeeded although its target was deregistered");
        let delivered =
            request.kind == Kind::Send || request.kind == Kind::Write && request.immediate;
        let received = self.ends[to].received >= sent.message || self.ends[to].qp.is_none();
        ensure!(!delivered || received, "succeeded, but its message did not arrive");
        match request.kind {
            Kind::Send => Ok(()),
            Kind::Write => self.written(end, sent),
            Kind::Read => self.read(end, sent),
            Kind::FetchAdd | Kind::CompareSwap => self.executed(end, sent),
            Kind::Bind | Kind::Invalidate => Err("it names no window".into()),
        }
    }

    fn written(&mut self, end: usize, sent: &Sent) -> Outcome {
        let Some(placed) = sent.placed else { return Ok(()) };
        let to = self.ends[end].peer;
        self.ends[to].known.place(&placed);
        let actual = self.ends[to].target_bytes(DATA + placed.at, placed.length);
        let later = self.ends[end].pending.iter().filter_map(|sent| sent.placed.as_ref());
        self.ends[to].known.check(DATA + placed.at, &actual, later)
    }

    /// Returns the bytes that a request fetched. Also checks that the bytes around them have not
    /// changed.
    fn fetched(&self, end: usize, sent: &Sent) -> Outcome<Vec<u8>> {
        let mut block = vec![0; sent.request.block_bytes()];
        self.ends[end].local.copy_out(sent.block, &mut block);
        unpack(&sent.request, &block).ok_or_else(|| "bytes around its elements were touched".into())
    }

    fn read(&mut self, end: usize, sent: &Sent) -> Outcome {
        let bytes = self.fetched(end, sent)?;
        let later = self.ends[end].pending.iter().filter_map(|sent| sent.placed.as_ref());
        self.ends[self.ends[end].peer].known.check(DATA + sent.request.at, &bytes, later)
    }

    fn executed(&mut self, end: usize, sent: &Sent) -> Outcome {
        let bytes = self.fetched(end, sent)?;
        let found = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        let Some(atomic) = sent.atomic else { return Ok(()) };
        let to = self.ends[end].peer;
        let word = &mut self.ends[to].known.words[atomic.word];
        ensure!(found == *word, "found {found:#x}, but the word was {word:#x}");
        *word = atomic.result(*word);
        Ok(())
    }

    fn failed(&mut self, end: usize, sent: &Sent, status: Status) -> Outcome {
        let own = &self.ends[end];
        let (to, request) = (own.peer, &sent.request);
        let receives =
            request.kind == Kind::Send || request.kind == Kind::Write && request.immediate;
        let excuses = own.excuses;
        let connection = self.script.settings.connections.get(end / 2);
        let reliable = own.service == Service::Reliable;
        let not_ready = connection.is_some_and(|c| c.rnr_retries < 7) && self.ends[to].starved;
        // The key that a SEND names has no effect on the success of the SEND.
        let used = sent.through.filter(|_| request.kind != Kind::Send);
        let verdict = used.map_or(Verdict::Works, |used| self.verdict(end, request, &used));
        let for_ever = connection.is_some_and(Connection::waits_for_ever);
        let allowed = match status {
            Status::IBV_WC_WR_FLUSH_ERR => own.failed || excuses.flushed,
            _ if own.failed || !reliable => false,
            Status::IBV_WC_RETRY_EXC_ERR => excuses.silence && !for_ever,
            Status::IBV_WC_RNR_RETRY_EXC_ERR => receives && not_ready,
            Status::IBV_WC_MW_BIND_ERR => request.kind.is_local() && verdict != Verdict::Works,
            _ if request.kind.is_local() => false,
            Status::IBV_WC_REM_ACCESS_ERR => {
                request.kind != Kind::Send && (excuses.access || verdict != Verdict::Works)
            }
            _ => false,
        };
        ensure!(allowed, "failed with status {}", status.0);
        if matches!(request.kind, Kind::Read | Kind::FetchAdd | Kind::CompareSwap) {
            self.fetched(end, sent)?;
        }
        if verdict != Verdict::Fails {
            self.ends[to].known.uncertain.extend(sent.placed);
            self.ends[to].known.unanswered.extend(sent.atomic);
        }
        if let Some(used) = used.filter(|_| request.kind.is_local()) {
            self.not_bound(end, request, &used);
        }
        self.linger(to, sent);
        self.ends[end].failed = true;
        // From here on, the peer gets no answers from this queue pair.
        self.ends[to].excuses.silence = true;
        Ok(())
    }

    /// Checks the completion of a receive.
    fn received(&mut self, device: usize, wc: &ibv_wc) -> Outcome {
        let is_it = |own: &crate::host::SimQueuePair| {
            own.device == device && own.qp.as_ref().is_some_and(|qp| qp.number() == wc.qp_num)
        };
        let end = self.ends.iter().position(is_it).ok_or("a receive of an unknown queue pair")?;
        let shared = wc.wr_id & SHARED != 0;
        let slot = (wc.wr_id & 0xffff_ffff) as usize;
        let posted = &self.pool(end).posted;
        let known = if shared { posted.contains(&slot) } else { posted.front() == Some(&slot) };
        let right = self.ends[end].shares == shared && (shared || (wc.wr_id >> 32) as usize == end);
        ensure!(known && right, "q{end}: a receive completed out of order");
        let bytes = self.pool(end).give_back(slot);
        match wc.status {
            Status::IBV_WC_SUCCESS => self
                .took(end, wc, &bytes)
                .map_err(|why| format!("q{end}, receive of {} bytes: {why}", wc.byte_len)),
            Status::IBV_WC_WR_FLUSH_ERR => {
                self.ends[end].flushed_early = true;
                Ok(())
            }
            Status::IBV_WC_REM_INV_REQ_ERR => self
                .took_wrong_key(end, &bytes)
                .map_err(|why| format!("q{end}, receive of a SEND that names a key: {why}")),
            // A WRITE with immediate data consumed the receive and was then refused. The receive
            // cannot return to a shared queue.
            Status::IBV_WC_REM_ACCESS_ERR
                if shared
                    && self.ends[end].service == Service::Unreliable
                    && self.ends[end].target.is_none() =>
            {
                Ok(())
            }
            other => Err(format!("q{end}: a receive failed with status {}", other.0)),
        }
    }

    /// Checks a message that was received, but requested the invalidation of an invalid key.
    fn took_wrong_key(&mut self, end: usize, bytes: &[u8]) -> Outcome {
        let own = &self.ends[end];
        let Some(message) = own.expected.front().copied() else {
            return Err("no message was sent".into());
        };
        let verdict = message.invalidates.map(|used| self.verdict_of_send(end, &used));
        ensure!(verdict.is_some(), "message {} invalidates nothing", message.number);
        ensure!(verdict != Some(Verdict::Works), "the key is that of a bound window");
        let same = bytes[..message.length] == memory::bytes(message.number, message.length);
        ensure!(same, "the bytes are not those of message {}", message.number);
        let in_error = own.qp.as_ref().is_none_or(|qp| qp.state() == State::IBV_QPS_ERR);
        ensure!(in_error, "the queue pair is not in the error state");
        let own = &mut self.ends[end];
        own.received = message.number;
        own.expected.pop_front();
        Ok(())
    }

    /// Checks a received message.
    fn took(&mut self, end: usize, wc: &ibv_wc, bytes: &[u8]) -> Outcome {
        let own = &self.ends[end];
        // If links duplicate or reorder packets, any unreliable message that was sent may arrive,
        // even twice.
        let (in_order, times) = match own.service {
            Service::Reliable => (true, 1),
            _ if self.unordered => (false, 2),
            Service::Unreliable => (true, 1),
            Service::Datagram => (false, 1),
        };
        let candidates = if own.service == Service::Reliable { 1 } else { usize::MAX };
        let mut why = String::from("no message was sent");
        let mut found = None;
        // Among equal messages, those that must arrive are tried first.
        let expected = || own.expected.iter().enumerate().take(candidates);
        let first = expected().filter(|(_, message)| message.certain);
        for (n, message) in first.chain(expected().filter(|(_, message)| !message.certain)) {
            if message.came >= times || !message.member {
                continue;
            }
            match self.is_message(end, message, wc, bytes) {
                Ok(()) => {
                    found = Some(n);
                    break;
                }
                Err(other) => why = other,
            }
        }
        let n = found.ok_or(why)?;
        if let Some(used) = self.ends[end].expected[n].invalidates {
            self.came_back(end, &used);
        }
        let own = &mut self.ends[end];
        own.received = own.received.max(own.expected[n].number);
        own.expected[n].came += 1;
        if in_order {
            own.expected.drain(..=n);
        }
        Ok(())
    }

    fn is_message(&self, end: usize, message: &Message, wc: &ibv_wc, slot: &[u8]) -> Outcome {
        let own = &self.ends[end];
        let number = message.number;
        let header = if own.service == Service::Datagram { HEADER } else { 0 };
        ensure!(
            wc.byte_len as usize == header + message.length,
            "message {number} has {} bytes",
            message.length
        );
        let with_imm = wc.wc_flags & Flags::IBV_WC_WITH_IMM.0 != 0;
        let immediate = with_imm.then(|| imm_of(wc));
        ensure!(immediate == message.immediate, "message {number}: immediate data {immediate:?}");
        let source = own.service == Service::Datagram && message.source != wc.src_qp;
        ensure!(!source, "message {number} is not from {:#x}", wc.src_qp);
        // An interrupted unreliable message may have left further bytes in the receive.
        let last = slot.len() - BETWEEN;
        let behind = if own.service == Service::Unreliable { last } else { header };
        if let Some(placed) = message.placed {
            ensure!(wc.opcode == Code::IBV_WC_RECV_RDMA_WITH_IMM, "came as {:?}", wc.opcode);
            ensure!(untouched(&slot[behind..]), "a WRITE wrote to the receive that it consumed");
            return self.is_placed(end, &placed);
        }
        ensure!(wc.opcode == Code::IBV_WC_RECV, "came as {:?}", wc.opcode);
        self.names_what_it_has_to(end, message, wc, slot)?;
        let bytes = &slot[header..header + message.length];
        let same = bytes == memory::bytes(number, message.length);
        ensure!(same, "the bytes are not those of message {number}");
        let behind = behind.max(header + message.length);
        ensure!(untouched(&slot[behind..]), "bytes after message {number} were touched");
        Ok(())
    }

    /// Checks that the completion names the key that the message invalidates, and the group to
    /// which the message was sent.
    fn names_what_it_has_to(
        &self,
        end: usize,
        message: &Message,
        wc: &ibv_wc,
        slot: &[u8],
    ) -> Outcome {
        let (number, key) = (message.number, invalidated(wc));
        let fails = |used: &Use| self.verdict_of_send(end, used) == Verdict::Fails;
        let used = message.invalidates;
        ensure!(key == used.map(|used| used.key), "message {number}: key {key:x?} was invalidated");
        ensure!(
            !used.as_ref().is_some_and(fails),
            "message {number}: its key belongs to no window"
        );
        let own = &self.ends[end];
        let endpoint = own.endpoint(&self.hosts).filter(|_| own.service == Service::Datagram);
        let Some(endpoint) = endpoint else { return Ok(()) };
        let named = (0..GROUPS).find(|&group| groups::is_named(slot, &endpoint.gid, group));
        ensure!(named == message.group, "message {number}: the header names group {named:?}");
        Ok(())
    }

    /// Checks that the target contains the bytes of a WRITE whose receive has completed. Bytes of a
    /// later WRITE are accepted instead.
    fn is_placed(&self, end: usize, placed: &memory::Placed) -> Outcome {
        let actual = self.ends[end].target_bytes(DATA + placed.at, placed.length);
        if actual == memory::bytes(placed.message, placed.length) {
            return Ok(());
        }
        let (known, from) = (&self.ends[end].known, self.ends[end].peer);
        let pending = self.ends[from].pending.iter().filter_map(|sent| sent.placed.as_ref());
        let written = |n: usize| {
            let others = pending.clone().chain(&known.uncertain);
            let mut others =
                others.filter(|other| self.unordered || other.message >= placed.message);
            others.any(|other| other.has(placed.at + n, actual[n]))
        };
        let wrong = (0..actual.len()).find(|&n| !written(n));
        ensure!(wrong.is_none(), "byte {} of the WRITE is missing", wrong.unwrap_or(0));
        Ok(())
    }
}
