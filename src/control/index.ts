export * from "./command.ts";
export type { ControlPlane, ControlStats } from "./control-plane.ts";
export * from "./receipt.ts";
