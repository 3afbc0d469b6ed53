export { readSessionTrace, type SessionTrace } from "./session-trace.ts";
export { benchSessions, type SessionsBench, type SessionsBenchOptions } from "./sessions-bench.ts";
export type { SessionFigures } from "./tally.ts";
