//! Servers, faults and checks for tests.
