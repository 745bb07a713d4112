//! Forebay.
