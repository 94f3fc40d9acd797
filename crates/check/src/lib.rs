//! The oracle: validates any plan from first principles, sharing no code with the engine.
