const std = @import("std");

/// `zig build` makes the library; `bindings` rewrites src/native/abi.gen.ts; `test` runs the Zig
/// tests; `stand-ins` makes libraries that tests open instead of CUDA's and the verbs'.
pub fn build(b: *std.Build) void {
    const target = b.standardTargetOptions(.{});
    const optimize = b.standardOptimizeOption(.{});

    const library = b.addLibrary(.{
        .linkage = .dynamic,
        .name = "hearth",
        .root_module = b.createModule(.{
            .root_source_file = b.path("zig/root.zig"),
            .target = target,
            .optimize = optimize,
            .link_libc = true,
            .pic = true,
            .strip = optimize != .Debug,
        }),
    });
    b.installArtifact(library);

    const generator = b.addExecutable(.{
        .name = "generate-bindings",
        .root_module = b.createModule(.{
            .root_source_file = b.path("zig/generate.zig"),
            .target = b.graph.host,
            .link_libc = true,
        }),
    });
    const generated = b.addRunArtifact(generator).captureStdOut(.{});
    const update = b.addUpdateSourceFiles();
    update.addCopyFileToSource(generated, "src/native/abi.gen.ts");
    b.step("bindings", "Write src/native/abi.gen.ts").dependOn(&update.step);

    const tests = b.addTest(.{
        .root_module = b.createModule(.{
            .root_source_file = b.path("zig/root.zig"),
            .target = target,
            .optimize = optimize,
            .link_libc = true,
        }),
    });
    const test_step = b.step("test", "Run the Zig tests");
    test_step.dependOn(&b.addRunArtifact(tests).step);

    const stand_ins = b.step("stand-ins", "Make what stands in for the libraries of devices");
    for ([_][]const u8{ "cuda", "verbs" }) |name| {
        const module = b.createModule(.{
            .root_source_file = b.path(b.fmt("zig/testing/{s}/root.zig", .{name})),
            .target = target,
            .optimize = optimize,
            .link_libc = true,
            .pic = true,
        });
        for ([_][]const u8{ "base/mutex", "base/monotonic", "rdma/verbs" }) |shared| {
            module.addAnonymousImport(std.fs.path.basename(shared), .{
                .root_source_file = b.path(b.fmt("zig/{s}.zig", .{shared})),
            });
        }
        const stand_in = b.addLibrary(.{
            .linkage = .dynamic,
            .name = b.fmt("standin-{s}", .{name}),
            .root_module = module,
        });
        stand_ins.dependOn(&b.addInstallArtifact(stand_in, .{}).step);
        const own = b.addTest(.{ .root_module = module });
        test_step.dependOn(&b.addRunArtifact(own).step);
    }
}
