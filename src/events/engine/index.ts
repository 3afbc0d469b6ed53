export { decodeEngineBatch, engineBatchSteps } from "./decode-batch.ts";
export { encodeEngineBatch } from "./encode-batch.ts";
export { ENGINE_BATCH_LIMITS } from "./limits.ts";
