export { GpuLine } from "./gpu-line.ts";
export { GpuPlane, type GpuPlaneOptions } from "./gpu-plane.ts";
export { WarmDesk, type WarmDeskOptions, WarmEngine } from "./warm-desk.ts";
