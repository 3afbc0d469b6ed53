export * from "./check-folder.ts";
export * from "./claim-folder.ts";
export * from "./folder-layout.ts";
export * from "./header.ts";
export * from "./repair.ts";
