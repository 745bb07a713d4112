//! Which clients keep pages of which files, and so have to drop them before and after another
//! client changes the content; and which have files mapped, and so have to hear of a new end.
//!
//! 1. Who reads pages is on record before the read is answered.
//! 2. Who was asked to drop pages is not on record for them until it reads some again.
//! 3. A mapping keeps the handle open by which its pages are read. Whoever has such a handle is
//!    told each end that the file has grown to, until it closes the handle: a store before the end
//!    that the kernel knows asks nobody.
//! 4. Who opens a file of which it keeps pages may map it without a read.
//! 5. A client has a file by a handle whose pages it keeps, or its kernel reads and writes the file
//!    by itself, unseen: not one the former and another the latter.

use std::collections::{HashMap, HashSet};

use forebay_types::{Handle, Ino};
use parking_lot::Mutex;

use super::shown::Viewers;

const SHARDS: usize = 16;

/// By client.
type Handles = HashMap<u32, HashSet<Handle>>;

fn take(handles: &mut Handles, client: u32, handle: Handle) {
    if let Some(of_client) = handles.get_mut(&client) {
        of_client.remove(&handle);
        if of_client.is_empty() {
            handles.remove(&client);
        }
    }
}

/// Who uses pages of one file.
#[derive(Default)]
struct Users {
    /// Who keeps some.
    keepers: Viewers,
    /// Who may have it mapped, or reads pages of it, by these handles.
    mapped: Handles,
    /// Who is about to open it so.
    opening: Viewers,
    /// Who has it again since a restart, and has not heard of its end since.
    returned: Viewers,
    /// Whose kernel has it by itself, by these handles.
    passing: Handles,
    /// All who have it mapped have heard of an end at this offset, or beyond. 0: not known.
    told: u64,
    /// Counts what may outdate a look at the end.
    changes: u64,
}

impl Users {
    fn maps(&mut self, client: u32, handle: Handle) -> bool {
        let handles = self.mapped.entry(client).or_default();
        let is_new = handles.insert(handle);
        if is_new {
            self.told = 0;
            self.changes += 1;
        }
        is_new
    }

    fn forget(&mut self, client: u32) {
        self.keepers.retain(|one| *one != client);
        self.mapped.remove(&client);
        self.returned.retain(|one| *one != client);
    }

    fn is_empty(&self) -> bool {
        self.keepers.is_empty()
            && self.mapped.is_empty()
            && self.opening.is_empty()
            && self.passing.is_empty()
    }
}

/// See the module.
#[derive(Default)]
pub struct Keepers([Mutex<HashMap<Ino, Users>>; SHARDS]);

impl Keepers {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Users>> {
        &self.0[ino.0 as usize % SHARDS]
    }

    /// Changes what is on record of a file, if anything is.
    fn change<T: Default>(&self, ino: Ino, change: impl FnOnce(&mut Users) -> T) -> T {
        let mut shard = self.shard(ino).lock();
        let Some(users) = shard.get_mut(&ino) else {
            return T::default();
        };
        let changed = change(users);
        if users.is_empty() {
            shard.remove(&ino);
        }
        changed
    }

    /// A client is about to read pages by this handle. Whether that is the first time, so far as
    /// this run of the server knows.
    pub fn keeps(&self, ino: Ino, client: u32, handle: Handle) -> bool {
        let mut shard = self.shard(ino).lock();
        let users = shard.entry(ino).or_default();
        if !users.keepers.contains(&client) {
            users.keepers.push(client);
        }
        let has_returned = users.returned.contains(&client);
        users.returned.retain(|one| *one != client);
        users.maps(client, handle) || has_returned
    }

    /// A client has opened a file.
    pub fn opened(&self, ino: Ino, client: u32, handle: Handle) {
        self.change(ino, |users| {
            if users.keepers.contains(&client) {
                users.maps(client, handle);
            }
        });
    }

    /// A client is about to open a file to read pages of it.
    pub fn opens(&self, ino: Ino, client: u32) {
        let mut shard = self.shard(ino).lock();
        shard.entry(ino).or_default().opening.push(client);
    }

    /// It has done so, by this handle, or reads no pages.
    pub fn has_opened(&self, ino: Ino, client: u32, handle: Option<Handle>) {
        self.change(ino, |users| {
            let mut opening = users.opening.iter();
            if let Some(at) = opening.position(|one| *one == client) {
                users.opening.swap_remove(at);
            }
            if let Some(handle) = handle {
                users.maps(client, handle);
            }
        });
    }

    /// Whether a client's kernel may have a file by itself, by this handle. Only if no other reads
    /// pages of it, or it has the file so already: it wants one kind.
    pub fn may_pass(&self, ino: Ino, client: u32, handle: Handle) -> bool {
        let mut shard = self.shard(ino).lock();
        let users = shard.entry(ino).or_default();
        let mut others = users.mapped.keys().chain(&users.opening);
        let may = users.passing.contains_key(&client) || others.all(|one| *one == client);
        if may {
            users.passing.entry(client).or_default().insert(handle);
        }
        may
    }

    /// Whether a client's kernel would get a file by itself only because it has the file so, as far
    /// as is known: the handles by which it does. Another client reads pages of it.
    pub fn passes_beside_pages(&self, ino: Ino, client: u32) -> Vec<Handle> {
        self.change(ino, |users| {
            let mut readers = users.mapped.keys().chain(&users.opening);
            let by = users.passing.get(&client);
            let by = by.filter(|_| readers.any(|one| *one != client));
            by.map_or_else(Vec::new, |handles| handles.iter().copied().collect())
        })
    }

    /// Whether another client's kernel has a file by itself.
    pub fn passes_elsewhere(&self, ino: Ino, client: u32) -> bool {
        self.change(ino, |users| users.passing.keys().any(|one| *one != client))
    }

    /// A client has again what it had open before a restart, and may have had mapped.
    pub fn reopened(&self, ino: Ino, client: u32, handle: Handle) {
        let mut shard = self.shard(ino).lock();
        let users = shard.entry(ino).or_default();
        users.maps(client, handle);
        if !users.returned.contains(&client) {
            users.returned.push(client);
        }
    }

    /// A client closes a file.
    pub fn closed(&self, ino: Ino, client: u32, handle: Handle) {
        self.change(ino, |users| {
            take(&mut users.mapped, client, handle);
            take(&mut users.passing, client, handle);
        });
    }

    /// All but one are about to drop their pages; who they are.
    pub fn take_others(&self, ino: Ino, client: u32) -> Viewers {
        self.change(ino, |users| {
            let others = users.keepers.iter().copied().filter(|one| *one != client);
            let others: Viewers = others.collect();
            users.keepers.retain(|one| *one == client);
            others
        })
    }

    /// Before somebody looks where a file ends that `client` has changed. `None` if no other has it
    /// mapped.
    pub fn look(&self, ino: Ino, client: u32) -> Option<u64> {
        self.change(ino, |users| {
            if users.mapped.keys().any(|one| *one != client) {
                return Some(users.changes);
            }
            // It may have become shorter.
            users.told = 0;
            users.changes += 1;
            None
        })
    }

    /// It ends there; `look` is from before that was found. Who is to be told.
    pub fn ends_at(&self, ino: Ino, client: u32, end: u64, look: u64) -> Viewers {
        self.change(ino, |users| {
            // What another one has found meanwhile may be later, or earlier.
            let is_known = users.changes == look;
            users.changes += 1;
            let knew = std::mem::replace(&mut users.told, if is_known { end } else { 0 });
            if is_known && end <= knew {
                return Viewers::new();
            }
            let others = users.mapped.keys().copied().filter(|one| *one != client);
            others.collect()
        })
    }

    /// A client has forgotten a file, and its pages with it.
    pub fn forget_file(&self, ino: Ino, client: u32) {
        self.change(ino, |users| users.forget(client));
    }

    /// A client is gone, and all that it had with it.
    pub fn forget(&self, client: u32) {
        for shard in &self.0 {
            shard.lock().retain(|_, users| {
                users.forget(client);
                users.passing.remove(&client);
                !users.is_empty()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Ino = Ino(7);
    const H: Handle = Handle(1);

    fn is_empty(keepers: &Keepers) -> bool {
        keepers.0.iter().all(|shard| shard.lock().is_empty())
    }

    #[test]
    fn others_drop_their_pages_once_and_who_is_gone_has_none() {
        let keepers = Keepers::default();
        for client in [1, 2, 2, 3] {
            keepers.keeps(F, client, H);
        }
        assert_eq!(keepers.take_others(F, 2)[..], [1, 3]);
        assert!(keepers.take_others(F, 2).is_empty());
        assert_eq!(keepers.take_others(F, 1)[..], [2]);
        keepers.keeps(F, 4, H);
        keepers.keeps(F, 5, H);
        keepers.forget(4);
        keepers.forget_file(Ino(8), 5);
        keepers.forget_file(F, 5);
        assert!(keepers.take_others(F, 1).is_empty());
        (1..=3).for_each(|client| keepers.closed(F, client, H));
        assert!(is_empty(&keepers));
    }

    fn told(keepers: &Keepers, by: u32, end: u64) -> Vec<u32> {
        let Some(look) = keepers.look(F, by) else {
            return Vec::new();
        };
        let mut others = keepers.ends_at(F, by, end, look).to_vec();
        others.sort_unstable();
        others
    }

    #[test]
    fn who_has_it_mapped_hears_of_each_end_that_is_new_until_it_closes_the_file() {
        let keepers = Keepers::default();
        assert!(told(&keepers, 3, 100).is_empty());
        assert!(keepers.keeps(F, 1, H) && !keepers.keeps(F, 1, H));
        assert!(keepers.keeps(F, 2, H));
        assert_eq!(told(&keepers, 3, 100), [1, 2]);
        // Pages are dropped; the mappings are there.
        assert_eq!(keepers.take_others(F, 3).len(), 2);
        assert!(told(&keepers, 3, 100).is_empty());
        assert_eq!(told(&keepers, 3, 200), [1, 2]);
        // A kernel that has looked meanwhile knows the shorter one.
        assert!(told(&keepers, 3, 50).is_empty());
        assert_eq!(told(&keepers, 1, 150), [2]);
        keepers.closed(F, 2, H);
        assert_eq!(told(&keepers, 3, 300), [1]);
        // Its own kernel has cut it, maybe.
        assert!(told(&keepers, 1, 100).is_empty());
        assert_eq!(told(&keepers, 3, 200), [1]);
        // It has not heard of the last one.
        keepers.reopened(F, 2, Handle(2));
        assert_eq!(told(&keepers, 3, 200), [1, 2]);
        assert!(keepers.keeps(F, 2, Handle(2)) && !keepers.keeps(F, 2, Handle(2)));
        keepers.take_others(F, 1);
        keepers.closed(F, 2, Handle(2));
        keepers.forget(1);
        assert!(told(&keepers, 3, 400).is_empty() && is_empty(&keepers));
    }

    #[test]
    fn who_opens_a_file_whose_pages_it_keeps_may_have_it_mapped() {
        let keepers = Keepers::default();
        keepers.opened(F, 1, H);
        assert!(told(&keepers, 2, 10).is_empty());
        keepers.keeps(F, 1, H);
        keepers.closed(F, 1, H);
        assert!(told(&keepers, 2, 10).is_empty());
        keepers.opened(F, 1, Handle(2));
        assert_eq!(told(&keepers, 2, 10), [1]);
        keepers.take_others(F, 2);
        keepers.closed(F, 1, Handle(2));
        assert!(is_empty(&keepers));
    }

    #[test]
    fn a_kernel_has_a_file_by_itself_only_where_no_other_client_reads_pages() {
        let keepers = Keepers::default();
        let (a, b, c) = (Handle(1), Handle(2), Handle(3));
        keepers.opens(F, 1);
        assert!(!keepers.may_pass(F, 2, b));
        keepers.has_opened(F, 1, Some(a));
        assert!(!keepers.may_pass(F, 2, b) && keepers.may_pass(F, 1, c));
        keepers.closed(F, 1, c);
        keepers.closed(F, 1, a);
        assert!(keepers.may_pass(F, 2, b));
        // The server tells who opens it now that it may not keep pages.
        keepers.opens(F, 1);
        assert!(keepers.may_pass(F, 2, c));
        let by: HashSet<Handle> = keepers.passes_beside_pages(F, 2).into_iter().collect();
        assert_eq!(by, HashSet::from([b, c]));
        assert!(keepers.passes_beside_pages(F, 1).is_empty());
        keepers.closed(F, 2, c);
        assert_eq!(keepers.passes_beside_pages(F, 2), [b]);
        keepers.has_opened(F, 1, None);
        assert!(keepers.passes_beside_pages(F, 2).is_empty());
        keepers.closed(F, 2, b);
        keepers.forget(2);
        assert!(is_empty(&keepers));
    }

    #[test]
    fn an_end_that_was_found_beside_another_change_is_told_in_any_case() {
        let keepers = Keepers::default();
        keepers.keeps(F, 1, H);
        let looks = [2, 3].map(|by| keepers.look(F, by).expect("mapped"));
        assert_eq!(keepers.ends_at(F, 2, 300, looks[0])[..], [1]);
        assert_eq!(keepers.ends_at(F, 3, 100, looks[1])[..], [1]);
        // Which of them is the later one is not known.
        assert_eq!(told(&keepers, 2, 100), [1]);
        assert!(told(&keepers, 2, 100).is_empty());
    }
}
