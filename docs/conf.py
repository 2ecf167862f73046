"""How the site is built: ``make docs``. Nothing is fetched, neither here nor by who reads the pages."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent)]

import diffscope  # noqa: E402

project = "diffscope"
author = "The diffscope authors"
copyright = author  # noqa: A001
version = release = diffscope.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_reredirects",
    "api",
    "gallery",
    "links",
    "live",
    "mathml",
    "outside",
    "statistics_page",
    "tutorials",
]
exclude_patterns = ["_build", "_ext", "jupyter_execute"]
default_role = "literal"  # `x` in docstrings is x as it is written
nitpicky = True
# Types of other libraries and words such as "path-like" in docstrings: nothing is fetched that could tell where they are.
nitpick_ignore_regex = [(r"py:(class|obj)", r"(?!diffscope\.).*")]

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
nb_execution_mode = "off"  # notebooks are kept executed
nb_ipywidgets_js = {}  # widgets need a kernel; what they leave in a notebook is a page
suppress_warnings = [
    "mystnb.unknown_mime_type",  # of widgets, beside whose page
    "ref.python",  # a word that is an attribute of several classes
]

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True
add_module_names = False

#: pages that were merged into others, and where what they said stands now; a place on the old page is kept in the address
redirects = {
    "against_what": "reading_numbers.html#controls",
    "attribution": "instruments.html#what-each-branch-adds-to-logits",
    "concepts": "how_it_works.html#a-capture-keeps-inputs-not-maps",
    "controls": "evidence/controls.html",
    "definitions": "statistics.html",
    "families": "your_model.html",
    "family_table": "evidence/families.html",
    "figures": "figures_and_tables.html#figures",
    "install": "get_started.html#more-on-installing",
    "interventions": "evidence/interventions.html",
    "key_sets": "reading_numbers.html#key-sets",
    "mechanism": "how_it_works.html",
    "models": "evidence/models.html",
    "nnsight": "other_tools.html#nnsight",
    "normalisations": "reading_numbers.html#normalisations",
    "performance": "evidence/performance.html",
    "ranks": "reading_numbers.html#ranks",
    "recipes/cluster_sweep": "../large_scale.html#a-sweep-on-a-cluster",
    "recipes/gpu": "../large_scale.html#on-a-gpu",
    "recipes/over_training": "../monitoring.html#comparing-checkpoints-afterwards",
    "recipes/paper_figure": "../figures_and_tables.html#a-figure-for-a-paper",
    "recipes/watch_a_loop": "../monitoring.html#in-a-loop-of-your-own",
    "refused": "your_model.html#why-was-my-model-refused",
    "start": "get_started.html",
    "sweeping": "large_scale.html#sweeps",
    "tables": "figures_and_tables.html#tables",
    "training": "large_scale.html#training-a-cohort",
    "transformer_lens": "other_tools.html#transformerlens",
    "transformers_table": "evidence/transformers.html",
    "verdicts": "reading_numbers.html#verdicts",
    "wrapping_table": "evidence/wrappings.html",
}
redirect_html_template_file = "_ext/redirect.html"

html_theme = "sphinx_book_theme"
html_title = "diffscope"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["names.js"]
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_navbar_depth": 1,
    "collapse_navigation": True,
    "navigation_depth": 2,
    "show_toc_level": 2,
    "home_page_in_toc": False,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_prev_next": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
linkcheck_ignore = [r"http://localhost.*"]
