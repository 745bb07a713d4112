//! One binary for all end-to-end tests: linking many costs more than running them.

mod at_rest;
mod bad_input;
mod commands;
mod errors;
mod faults;
mod faults_disks;
mod faults_limits;
mod faults_power;
mod fsync;
mod group;
mod hanging;
mod kept;
mod one_tree;
mod oversubscription;
mod posix_attributes;
mod posix_data;
mod posix_names;
mod posix_rules;
mod posix_users;
mod random;
mod sentences;
mod space;
mod stopping;
mod twin;
mod unseen;
mod whole;
