//! Connections over a Unix socket, by user: nobody takes those of all others.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::asks::View;

/// Of one user at a time.
const OF_A_USER: usize = 8;
/// Of all who are neither root nor the server's own user: those always find room.
const OF_ALL_USERS: usize = 32;

/// Who has how many.
#[derive(Clone, Default)]
pub struct Seats(Arc<Mutex<HashMap<u32, usize>>>);

/// A connection, until it is dropped.
pub struct Seat {
    seats: Seats,
    /// `None`: it is not counted.
    uid: Option<u32>,
}

impl Seats {
    /// One more for this user; `None` if there is none.
    pub fn take(&self, uid: u32, view: View) -> Option<Seat> {
        let uid = (view == View::NoNames).then_some(uid);
        if let Some(uid) = uid {
            let mut taken = self.0.lock();
            let of_user = taken.get(&uid).copied().unwrap_or(0);
            if of_user >= OF_A_USER || taken.values().sum::<usize>() >= OF_ALL_USERS {
                return None;
            }
            taken.insert(uid, of_user + 1);
        }
        Some(Seat {
            seats: self.clone(),
            uid,
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(uid) = self.uid else {
            return;
        };
        let mut taken = self.seats.0.lock();
        if let Some(count) = taken.get_mut(&uid) {
            *count -= 1;
        }
        taken.retain(|_, count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_room_for_others_and_all_users_leave_room_for_root() {
        let seats = Seats::default();
        let of_one: Vec<_> = (0..20)
            .filter_map(|_| seats.take(1000, View::NoNames))
            .collect();
        assert_eq!(of_one.len(), OF_A_USER);
        let of_others: Vec<_> = (0..200)
            .filter_map(|uid| seats.take(2000 + uid, View::NoNames))
            .collect();
        assert_eq!(of_others.len(), OF_ALL_USERS - OF_A_USER);
        let of_root: Vec<_> = (0..20)
            .filter_map(|_| seats.take(0, View::Everything))
            .collect();
        assert_eq!(of_root.len(), 20);
        drop((of_one, of_others));
        assert!(seats.take(1000, View::NoNames).is_some());
        assert!(seats.0.lock().is_empty(), "nothing is kept of who has left");
    }
}
