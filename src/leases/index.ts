export { type SessionOutcome, type SessionState, Sessions } from "./sessions.ts";
