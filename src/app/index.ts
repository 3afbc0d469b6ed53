export { Agent, type AgentParts, type AgentState } from "./agent.ts";
export { ControlBus, type ControlBusParts } from "./control-bus.ts";
export { ControlRoom, type ControlRoomParts } from "./control-room.ts";
export { hostProblems } from "./host-problems.ts";
export { operatorWork } from "./operator-work.ts";
export { type RunAgentOptions, readConfig, runAgent } from "./run-agent.ts";
export { createServiceManager, type ServiceManager } from "./service-manager.ts";
export { STOP_MS_MAX } from "./stop-times.ts";
