"""What is tested: one function for each, on a Slurm that runs."""

from slurm_site import until


def stage_in_then_run_then_stage_out(site):
    content = b"in" * 100_000
    site.put("alice/in/data", content)
    job = site.job(f"#BB_LUA stage_in path={site.mount}/alice/in\n#BB_LUA stage_out path={site.mount}/alice/out",
                   f"cp {site.mount}/alice/in/data {site.mount}/alice/out; {site.forebay} where {site.mount}/alice/in")
    site.ends(job)
    assert "clean" in site.output(job), site.output(job)
    assert (site.pfs / "alice/out").read_bytes() == content


AS_ROOT = ["stage_in_then_run_then_stage_out"]
OTHERS = []
