//! Ids, quantities, topology, pod shapes, gangs, plans and reasons.
