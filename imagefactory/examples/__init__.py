"""Files that ``imagefactory init`` starts a project with."""
