export { type Check, type CheckStatus, type DoctorReport, formatDoctor } from "./check.ts";
export { type DoctorOptions, LOOK_MS, type Looked, lookInChild, runDoctor } from "./doctor.ts";
export type { Probe } from "./host-checks.ts";
