export type { Probe } from "./check-system.ts";
export { type DoctorOptions, runDoctor } from "./doctor.ts";
export { type Check, type CheckStatus, type DoctorReport, formatDoctor } from "./report.ts";
