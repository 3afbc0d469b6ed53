export { type Certificates, makeCertificates } from "./certificates.ts";
export {
  type HostFiles,
  makeCluster,
  type TestCluster,
  validFor,
  writeCredentials,
} from "./cluster.ts";
export { endlessTurns } from "./endless-turns.ts";
export { hearthExecutable, withAgent } from "./executable.ts";
export { faultCounts } from "./fault-counts.ts";
export { ManualClock } from "./manual-clock.ts";
export { describeNative, nativeVerdict } from "./native.ts";
export { describeNats, NatsServer, type NatsServerOptions, type NatsTls } from "./nats.ts";
export { describePython, pythonEnvironment, requirePython } from "./python.ts";
export { describePyzmq, PyzmqProcess } from "./pyzmq.ts";
export { noteSkip } from "./skips.ts";
export { tempDir, withTempDir } from "./temp-dir.ts";
export { UnfinishedRequest } from "./unfinished-request.ts";
export { waitFor } from "./wait.ts";
