export type { Probe } from "./check-system.ts";
export { type DoctorOptions, runDoctor } from "./doctor.ts";
export { LOOK_MS, type Looked, lookInChild } from "./look.ts";
export { type Check, type CheckStatus, type DoctorReport, formatDoctor } from "./report.ts";
