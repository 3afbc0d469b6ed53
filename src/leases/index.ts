export type {
  AddedHold,
  BudgetFigures,
  EndedHold,
  HoldInfo,
  HoldKind,
  HoldPage,
  HoldRequest,
  Holds,
  ReliefLevel,
} from "./holds.ts";
export type {
  ListOptions,
  SessionInfo,
  SessionPage,
  SessionState,
  TierUse,
} from "./session-info.ts";
export { type SessionOutcome, Sessions } from "./sessions.ts";
