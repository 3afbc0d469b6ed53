export { decodeAnswer, encodeAnswer } from "./answer-codec.ts";
export { decodeResidencyMessage, encodeBatch, encodeHeartbeat } from "./message-codec.ts";
export {
  blocksIn,
  RESIDENCY_LIMITS,
  type ResidencyAnswer,
  type ResidencyMessage,
  type ResidencyQuestion,
  type ResidencyRun,
  type ResidencySnapshotPart,
} from "./messages.ts";
export { decodeQuestion, encodeQuestion } from "./question-codec.ts";
export { fitRange, liveBlocksMax, snapshotParts, splitBatch, splitChange } from "./split.ts";
export {
  decodeStoredSnapshot,
  encodeStoredSnapshot,
  eventsStream,
  snapshotBucket,
  snapshotObject,
} from "./stored-snapshot.ts";
export { ANY, eventsSubject, questionsSubject, type SubjectOf } from "./subjects.ts";
